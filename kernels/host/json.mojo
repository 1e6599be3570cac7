"""JSON as text. Functions return values, or the members of an object."""


def quoted(text: String) -> String:
    """Returns a JSON string. The text must not contain quotes, backslashes or control characters."""
    return String('"', text, '"')


def member(name: StaticString, value: Int) -> String:
    """Returns a member of an object."""
    return String(quoted(name), ": ", value)


def member(name: StaticString, value: Bool) -> String:
    """Returns a member of an object."""
    return String(quoted(name), ": ", "true" if value else "false")


def member(name: StaticString, value: String) -> String:
    """Returns a member of an object whose value is JSON already."""
    return String(quoted(name), ": ", value)


def string_member(name: StaticString, value: Some[Writable]) -> String:
    """Returns a member of an object whose value is a JSON string."""
    return member(name, quoted(String(value)))


def array(items: List[String]) -> String:
    return String("[", String(", ").join(items), "]")


def numbers(items: List[Int]) -> String:
    return array([String(item) for item in items])


def numbers(*items: Int) -> String:
    return array([String(item) for item in items])


def object(members: List[String]) -> String:
    return String("{", String(", ").join(members), "}")
