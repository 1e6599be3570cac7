"""JSON as text. Text must not contain quotes, backslashes or control characters."""
from ..common.word import Word


struct Json(ImplicitlyCopyable, Writable):
    """A JSON value. Text, a Word, an Int, a Bool, a list of Int and a list of Json convert to it, and no other type."""

    var text: String

    def __init__(out self, *, text: String):
        """Takes text that is JSON already."""
        self.text = text

    @implicit
    def __init__[T: Writable, //](out self, value: T):
        comptime if T == Bool:
            self.text = String(value).lower()
        elif T == Int or T == List[Int] or T == List[Json]:
            self.text = String(value)
        else:
            comptime is_text = T == String or T == StaticString or T == Word
            comptime assert is_text, "JSON is made of text, Word, Int, Bool, List[Int] and List[Json]"
            self.text = String('"', value, '"')

    def write_to(self, mut writer: Some[Writer]):
        writer.write(self.text)


def numbers(*items: Int) -> List[Int]:
    """Returns a list: a literal has no type that converts to JSON."""
    return [item for item in items]


def object(var **members: Json) -> Json:
    """Returns an object with these members, in this order."""
    return Json(
        text=String("{", String(", ").join([String(t'"{one.key}": {one.value}') for one in members.items()]), "}")
    )
