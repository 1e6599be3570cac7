def coverage_page() -> str:
    return ""
