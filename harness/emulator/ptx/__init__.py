"""PTX front end: text to syntax tree (parser) to control-flow graph (cfg)."""
