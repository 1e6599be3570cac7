"""PTX front end: the parser, which turns text into the data of a module, and the type checks that ptxas makes."""
