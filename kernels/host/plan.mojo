"""Completes and checks any configuration and prints its launch plan, without compiling the kernel.

    from kernels.host.plan import plan_main

    def main():
        plan_main()

    mojo build -I REPOSITORY driver.mojo -o plan
    plan M N K ld=520,512,0 kernel=kernel8 ...
    plan M N K kernel=kernel6 cluster_m=4 cluster_n=4 dtype=fp16 multicast=false ...
    plan M N K groups=40,0,248 kernel=kernel8 grouped=true ...
    plan configs

Options are those of GemmConfig. The program prints one line of JSON, the launch plan with a null entry name. If a
configuration or a size breaks a rule, it prints one line on standard error and exits with code 2.

`plan configs` reads lines of options and prints a line for each: {"config": {...}} with all options; {"refused":
{"subject", "instead", "message"}} if it breaks a rule (ConfigError); or {"error": message} if it is no configuration.
"""
from .json import object
from .launch_plan import DENSE, LaunchPlan, LeadingDimensions
from ..common.options import whole_number
from .options import parse_configuration, split_options
from .plan_json import config_json, plan_json
from .rules import check, config_error
from std.sys import argv, exit, stderr, stdin


def reply_to(line: String) -> String:
    """Returns the line of JSON for a line of options."""
    try:
        var config = parse_configuration(split_options(line))
        try:
            check(config)
            return object(config=config_json(config)).text
        except wrong:
            var refused = object(subject=wrong.subject, instead=wrong.instead, message=wrong.message)
            return object(refused=refused^).text
    except error:
        return object(error=String(error)).text


def serve_lines() raises:
    """Replies to each line of standard input at once, until its end."""
    var input = stdin
    var buffer = List[UInt8](length=4096, fill=0)
    var text = String()
    while True:
        var count = input.read_bytes(buffer)
        if count == 0:
            return
        text += String(from_utf8=Span(buffer)[0 : Int(count)])
        var lines = text.split("\n")
        for line in range(len(lines) - 1):
            print(reply_to(String(lines[line])), flush=True)
        var begun = String(lines[len(lines) - 1])
        text = begun^


def print_plan() raises:
    """Prints the launch plan for the program's arguments, or serves lines of options."""
    var arguments = List[String]()
    for argument in argv():
        arguments.append(String(argument))
    if len(arguments) == 2 and arguments[1] == "configs":
        return serve_lines()
    if len(arguments) < 4:
        raise Error("usage: plan M N K [name=value ...], or plan configs")
    var m = whole_number("M", arguments[1])
    var n = whole_number("N", arguments[2])
    var k = whole_number("K", arguments[3])

    def numbers(name: String) raises {mut arguments} -> List[Int]:
        """Takes the numbers of the next argument if it is `name=40,0,248`; otherwise returns none."""
        var found = List[Int]()
        if len(arguments) > 4 and arguments[4].startswith(name + "="):
            for size in arguments.pop(4).split("=")[1].split(","):
                found.append(whole_number(name, String(size)))
        return found^

    var sizes = numbers("groups")
    var given = numbers("ld")
    var ld = DENSE if len(given) == 0 else LeadingDimensions(given[0], given[1], given[2])
    var config = parse_configuration(List[String](arguments[4:]))
    var wrong = config_error(config)
    if wrong.byte_length() > 0:
        raise Error(wrong)
    print(plan_json(config, LaunchPlan(config, m, n, k, len(sizes), ld), sizes))


def plan_main():
    """Runs the planner."""
    try:
        print_plan()
    except error:
        print(error, file=stderr)
        exit(2)
