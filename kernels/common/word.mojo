"""Short names that a compile-time parameter can hold."""

comptime LENGTH = 32
comptime Bytes = SIMD[DType.uint8, LENGTH]


struct Word(Equatable, TrivialRegisterPassable, Writable):
    """A name of at most 31 bytes, stored by value. If a parameter pointed to text, the compiler would copy that memory
    into every function that it compiles, which took twice as long for a kernel."""

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
        """Returns the name as a String."""
        var found = String()
        for i in range(LENGTH):
            if self.bytes[i] != 0:
                found += chr(Int(self.bytes[i]))
        return found^

    def write_to(self, mut writer: Some[Writer]):
        writer.write(self.text())


def bytes_of(text: StringSlice) -> Bytes:
    """Returns the first bytes of a text. A longer text equals no name, because the last byte of a name is 0."""
    var found = Bytes(0)
    for i in range(min(LENGTH, text.byte_length())):
        found[i] = text.as_bytes()[i]
    return found
