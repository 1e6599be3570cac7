"""Options as text, `kernel=kernel8 cluster_m=2 cluster_n=1 multicast=false`, in any order. `GemmConfig` reads them at
run time in the planner, at compile time in a build or a MAX op."""
from .word import Word


def whole_number(name: String, text: String) raises -> Int:
    """Returns the integer that the text is. Raises for any other text, and names the option."""
    try:
        return Int(text)
    except:
        raise Error(name, " '", text, "' is not a whole number")


struct Options(Movable):
    """The options that were given. Each method takes one of them, and returns its default if it was not given."""

    var values: Dict[String, String]

    def __init__(out self, words: List[String]) raises:
        self.values = {}
        for word in words:
            var parts = word.split("=")
            if len(parts) != 2:
                raise Error("'", word, "' is not of the form name=value")
            var name = String(parts[0])
            if name in self.values:
                raise Error("'", name, "' is given twice")
            self.values[name] = String(parts[1])

    def number(mut self, name: String, default: Int) raises -> Int:
        return whole_number(name, self.values.pop(name)) if name in self.values else default

    def switch(mut self, name: String, default: Bool = False) raises -> Bool:
        var usual: Word = "true" if default else "false"
        return self.word[["true", "false"]](name, usual) == "true"

    def word[choices: List[Word]](mut self, name: String, default: Word) raises -> Word:
        """Takes an option whose value is one of the choices. Raises for another value."""
        if name not in self.values:
            return default
        var text = self.values.pop(name)
        comptime for choice in choices:
            if Word(text) == choice:
                return choice
        raise Error(name, " '", text, "' is not one of ", String(", ").join(materialize[choices]()))

    def finish(self) raises:
        """Raises for an option that nobody has taken."""
        for name in self.values:
            raise Error("'", name, "' is not a parameter of a configuration")
