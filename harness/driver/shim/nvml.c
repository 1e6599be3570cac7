int nvmlInit(void); int nvmlInit(void) { return 0; }
