"""PTX front end: text to the data of a module (parser), and the checks that ptxas makes of types."""
