"""The error of a configuration that breaks a rule."""


struct ConfigError(Copyable, Movable):
    """The rule that a configuration breaks. Names are those of the planner's options."""

    var subject: StaticString  # the option that breaks the rule, or `declaration`: the kernel's own
    var instead: StaticString  # other options that could change instead, separated by commas; may be empty
    var message: String  # the value and the rule

    def __init__(out self, subject: StaticString, message: Some[Writable], *, instead: StaticString = ""):
        self.subject = subject
        self.instead = instead
        self.message = String(message)


def check_only(holds: Bool, subject: StaticString, message: Some[Writable]) raises ConfigError:
    """Refuses an option unless it has the only value that the kernel takes."""
    if not holds:
        raise ConfigError(subject, message, instead="kernel")
