"""JSON as text: a value is what its function returns, an object a list of members."""


def quoted(text: String) -> String:
    """A JSON string. The texts here hold no quotes, backslashes or control characters."""
    return String('"', text, '"')


def pair(name: StaticString, value: Int) -> String:
    return String(quoted(name), ": ", value)


def pair(name: StaticString, value: Bool) -> String:
    return String(quoted(name), ": ", "true" if value else "false")


def pair(name: StaticString, value: String) -> String:
    """`value` is JSON already."""
    return String(quoted(name), ": ", value)


def text(name: StaticString, value: Some[Writable]) -> String:
    return pair(name, quoted(String(value)))


def array(items: List[String]) -> String:
    return String("[", String(", ").join(items), "]")


def numbers(items: List[Int]) -> String:
    return array([String(item) for item in items])


def numbers(*items: Int) -> String:
    return array([String(item) for item in items])


def object(members: List[String]) -> String:
    return String("{", String(", ").join(members), "}")
