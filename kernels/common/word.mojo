"""A short text without a pointer."""

comptime LENGTH = 32
comptime Bytes = SIMD[DType.uint8, LENGTH]


struct Word(Equatable, TrivialRegisterPassable, Writable):
    """A name of at most 31 bytes, as a number. Of a parameter that points to a text the compiler copies the memory in which
    the text was read into every function that it compiles: a kernel took twice as long."""

    var bytes: Bytes

    @implicit
    def __init__(out self, text: StringLiteral):
        comptime bytes = bytes_of(type_of(text)())
        comptime assert bytes[LENGTH - 1] == 0, "a name has at most 31 bytes"
        self.bytes = bytes

    @implicit
    def __init__(out self, text: StringSlice):
        self.bytes = bytes_of(text)

    def __eq__(self, other: Self) -> Bool:
        return self.bytes == other.bytes

    def __ne__(self, other: Self) -> Bool:
        return self.bytes != other.bytes

    def text(self) -> String:
        var found = String()
        for i in range(LENGTH):
            if self.bytes[i] != 0:
                found += chr(Int(self.bytes[i]))
        return found^

    def write_to(self, mut writer: Some[Writer]):
        writer.write(self.text())


def bytes_of(text: StringSlice) -> Bytes:
    """A longer text is cut off. It then equals no name, whose last byte here is 0."""
    var found = Bytes(0)
    for i in range(min(LENGTH, text.byte_length())):
        found[i] = text.as_bytes()[i]
    return found


def text[*choices: StaticString](word: Word) -> StaticString:
    """The choice that a word is, for what the code of a kernel compares: LLVM compares texts later than numbers, and orders
    the instructions otherwise."""
    comptime for i in range(choices.size):
        if word == choices[i]:
            return choices[i]
    return ""
