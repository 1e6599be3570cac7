"""Parse PTX text, as compilers emit it, into the data of ``ast``.

Source of the grammar: PTX ISA 9.1, sections 4 (syntax), 5 (state spaces, types) and 11 (directives).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np

from harness.emulator.errors import PtxSyntaxError
from harness.emulator.ptx.ast import (
    TYPE_BYTES,
    Dual,
    Function,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Memory,
    Negated,
    Operand,
    Parameter,
    ParsedModule,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SPACE = re.compile(r"\s+")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_FILE = re.compile(r"\.file\s+(\d+)\s+\"([^\"\n]*)\"[^\n]*")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
_OPCODE = re.compile(r"[\w.:]+")
_NAME = re.compile(r"[%A-Za-z_$][\w$.]*")
_DIRECTIVE = re.compile(r"^(\.(?:reg|shared|local|param))(?=\.)")
_RANGE = re.compile(r"(%?[A-Za-z_$][\w$]*?)<(\d+)>$")
_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?$")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})$|0[dD]([0-9a-fA-F]{16})$")
_PRAGMA = re.compile(r"(\.pragma\s+\")([^\"\n]*)(\")")
_TYPE = re.compile(
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.v(?P<vector>[248])\s+)?\.(?P<type>[a-z]\w+)\s+(?:\.align\s+(?P<late>\d+)\s+)?"
)
_VARIABLE = re.compile(r"(?P<name>[\w$%]+)\s*(?P<array>(?:\[\s*\d*\s*\]\s*)*)(?:=\s*(?P<init>.+))?$", re.S)
_POINTER = re.compile(
    r"(?:(?P<generic>generic)\s*\(\s*)?(?P<name>[A-Za-z_$%][\w$]*)\s*\)?\s*(?:\+\s*(?P<addend>\d+))?$"
)
_PARAMETER = re.compile(
    r"\.(?P<space>param|reg)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[a-z]\w+)\s+(?:\.ptr\b[^%A-Za-z_$]*(?:\.\w+\s+)*"
    r"(?:\.align\s+\d+\s+)?)?(?P<name>[\w$%]+)\s*(?:\[\s*(?P<count>\d+)\s*\])?$"
)
_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(laneid|warpid|nwarpid|cluster_ctarank|cluster_nctarank|is_explicit_cluster|smid|nsmid|gridid|clock|clock_hi"
    r"|clock64|pm[0-7](?:_64)?|envreg(?:[12]?\d|3[01])|reserved_smem_offset_(?:begin|end|cap|[01])|current_graph_exec"
    r"|globaltimer|globaltimer_lo|globaltimer_hi|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size"
    r"|total_smem_size|aggr_smem_size)$"
)


_RETURN = "<return>"
"""The label behind a function's body that has taken the place of a call."""
_MOST_INSTRUCTIONS = 200_000
"""Of a kernel and the functions put in place of its calls; calls beyond that stay calls."""
_CARRY_IN = ("addc", "subc", "madc")
"""Instructions that read the carry flag."""


def parse_module(text: str) -> ParsedModule:
    """Parse a whole PTX file.

    Raises PtxSyntaxError with the line number and the text that cannot be understood.
    """
    parser = _Parser(text)
    module = parser.module()
    parser.bodies(module)
    for kernel in module.kernels.values():
        for instruction, (number, line) in zip(kernel.instructions, parser.sources[kernel.name], strict=True):
            if number in parser.files:
                instruction.source = f"{parser.files[number]}:{line}"
    return module


@dataclass
class _Scope:
    """A brace scope: register names and ranges, labels, enclosing scope."""

    parent: _Scope | None
    registers: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    """The names by which the kernel knows variables that are declared here."""
    local_top: int = 0
    """Local memory in use where the scope began."""


class _Parser:
    def __init__(self, text: str):
        # Comments become spaces so that offsets and line numbers stay those of the file.
        self.lines = text.splitlines()
        text = _PRAGMA.sub(lambda m: m[1] + " " * len(m[2]) + m[3], text)
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self.at = 0
        self.files: dict[str, str] = {}
        """Source files by number (.file)."""
        self.sources: dict[str, list[tuple[str, str]]] = {}
        """By kernel: (file number, line) of each instruction (.loc)."""
        self.functions: dict[str, Function] = {}
        self.aliases: dict[str, str] = {}
        self._entries: list[tuple[Kernel, int]] = []
        """Kernels without their instructions yet, and where their bodies begin."""

    def bodies(self, module: ParsedModule) -> None:
        """Parse the kernels' instructions, now that every variable and function is known."""
        for kernel, start in self._entries:
            self.at = start
            _Body(self, module).kernel(kernel)

    # ---- module level ----

    def module(self) -> ParsedModule:
        module = ParsedModule("", "", {}, {})
        while self._skip_space():
            if self._file() or self._take(_LOC):
                continue
            start = self.at
            word = self._word()
            if word == ".version":
                module.version = self._rest_of_line()
            elif word == ".target":
                module.target = self._rest_of_line()
            elif word == ".address_size":
                if self._rest_of_line() != "64":
                    raise self._error(start, "only 64-bit addresses are supported")
            elif word == ".section":
                self._skip_braces()
            elif word == ".pragma":
                self._until(";")
            elif word == ".alias":
                alias, _, name = self._until(";").partition(",")
                self.aliases[alias.strip()] = name.strip()
            elif word in (".visible", ".weak", ".extern", ".common", ".global", ".const", ".shared", ".entry", ".func"):
                self.at = start
                self._module_item(module)
            else:
                raise self._error(start, f"unknown directive '{word}' at module scope")
        if not module.target:
            raise PtxSyntaxError("not a PTX module: no .target directive; give the text of a .ptx file")
        return module

    def _file(self) -> bool:
        """Take a .file directive, if one is next."""
        found = self._take(_FILE)
        if found:
            self.files[found[1]] = found[2]
        return found is not None

    def _module_item(self, module: ParsedModule) -> None:
        start = self.at
        external = False
        while True:
            self._skip_space()
            word = self._word()
            if word in (".visible", ".weak", ".common"):
                continue
            if word == ".extern":
                external = True
            elif word == ".entry":
                kernel = self._kernel(module)
                module.kernels[kernel.name] = kernel
                return
            elif word == ".func":
                self._function()
                return
            elif word in (".global", ".const", ".shared"):
                for variable in self._variables(word[1:], external):
                    module.variables[variable.name] = variable
                return
            else:
                raise self._error(start, f"unknown directive '{word}' at module scope")

    def _variables(self, space: str, external: bool) -> list[Variable]:
        """The variables of one declaration, up to its semicolon."""
        start = self.at
        body = self._until(";")
        found = _TYPE.match(body.strip().removeprefix(".attribute(.managed)").strip())
        if not found or found["type"] not in TYPE_BYTES:
            raise self._error(start, f"cannot read the variable declaration '{body.strip()}'")
        element = TYPE_BYTES[found["type"]] * int(found["vector"] or 1)
        align = int(found["align"] or found["late"] or element)
        variables = []
        for item in _split(found.string[found.end() :]):
            match = _VARIABLE.match(item)
            if not match:
                raise self._error(start, f"cannot read the variable declaration '{body.strip()}'")
            size = element
            for extent in re.findall(r"\[\s*(\d*)\s*\]", match["array"]):
                size *= int(extent or 0)
            data: bytes | None = None
            addresses: tuple[tuple[int, str, int, bool], ...] = ()
            if match["init"]:
                scalar = TYPE_BYTES[found["type"]]
                data, addresses = self._initial_value(start, match["init"], scalar, found["type"])
                size = size or -(-len(data) // align) * align
                data = data.ljust(size, b"\0")
            variables.append(Variable(match["name"], space, align, size, external, data, addresses))
        return variables

    def _initial_value(
        self, start: int, text: str, element: int, kind: str
    ) -> tuple[bytes, tuple[tuple[int, str, int, bool], ...]]:
        """Bytes of ``= {1, 0f3F800000, generic(name) + 8}``, and the addresses in it (PTX ISA 5.4.4)."""
        data, addresses = bytearray(), []
        for item in _split(re.sub(r"[{}]", " ", text)):
            number = _number(item)
            if number is None:
                pointer = _POINTER.match(item)
                if pointer is None or element != 8:
                    raise self._error(start, f"cannot read the initial value '{item}'")
                addresses.append((len(data), pointer["name"], int(pointer["addend"] or 0), bool(pointer["generic"])))
                value = 0
            elif number.decimal and kind == "f32":
                value = int(np.float32(item).view(np.uint32))
            else:
                value = number.value
            data += (value & ((1 << 8 * element) - 1)).to_bytes(element, "little")
        return bytes(data), tuple(addresses)

    def _function(self) -> None:
        """``.func (results) name (parameters)``, with a body or without one."""
        self._skip_space()
        results = self._parameters() if self.text[self.at] == "(" else []
        self._skip_space()
        name = self._word()
        self._skip_space()
        parameters = self._parameters() if self.text[self.at : self.at + 1] == "(" else []
        while self._skip_space():
            if self.text[self.at] == ";":
                self.at += 1
                return
            if self.text[self.at] == "{":
                self.functions[name] = Function(name, tuple(results), tuple(parameters), self.at)
                self._skip_braces(f"function '{name}'")
                return
            self.at += 1
        raise self._error(len(self.text) - 1, ".func without an end")

    # ---- kernels ----

    def _kernel(self, module: ParsedModule) -> Kernel:
        self._skip_space()
        line = self._line(self.at)
        name = self._word()
        self._skip_space()
        parameters = self._parameters() if self.text[self.at : self.at + 1] == "(" else []
        directives: dict[str, tuple[int, ...]] = {}
        while True:
            self._skip_space()
            if self.text[self.at] == "{":
                break
            start = self.at
            word = self._word()
            if not word.startswith("."):
                raise self._error(start, f"expected a kernel directive or '{{', found '{word}'")
            if word == ".pragma":
                self._until(";")
                continue
            rest = re.compile(r"[\d,\s]*").match(self.text, self.at)
            assert rest is not None
            self.at = rest.end()
            directives[word[1:]] = tuple(int(n) for n in re.findall(r"\d+", rest.group()))
        kernel = Kernel(name, line, parameters, directives, [], 0, {}, self.lines)
        self._entries.append((kernel, self.at))
        self._skip_braces(f"kernel '{name}'")
        return kernel

    def _parameters(self) -> list[Parameter]:
        """A list of ``.param`` (or, of functions, ``.reg``) declarations in parentheses."""
        self.at += 1
        parameters: list[Parameter] = []
        offset = 0
        for item in filter(None, (part.strip() for part in self._until(")").split(","))):
            match = _PARAMETER.match(_SPACE.sub(" ", item))
            if not match or match["type"] not in TYPE_BYTES:
                raise self._error(self.at, f"cannot read the parameter '{item}'")
            element = TYPE_BYTES[match["type"]]
            size = element * int(match["count"] or 1)
            align = int(match["align"] or element)
            offset = -(-offset // align) * align
            in_register = match["space"] == "reg"
            parameters.append(
                Parameter(match["name"], offset, size, align, match["type"], match["count"] is not None, in_register)
            )
            offset += size
        return parameters

    # ---- scanning ----

    def _skip_space(self) -> bool:
        match = _SPACE.match(self.text, self.at)
        if match:
            self.at = match.end()
        return self.at < len(self.text)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _word(self) -> str:
        match = re.compile(r"[.%A-Za-z_$][\w$.:]*").match(self.text, self.at)
        if not match:
            raise self._error(self.at, f"cannot understand '{self.text[self.at : self.at + 20].splitlines()[0]}'")
        self.at = match.end()
        return match.group()

    def _rest_of_line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        rest, self.at = self.text[self.at : end].strip(), end
        return rest

    def _until(self, stop: str) -> str:
        end = self.text.find(stop, self.at)
        if end < 0:
            raise self._error(self.at, f"missing '{stop}'")
        found, self.at = self.text[self.at : end], end + 1
        return found

    def _skip_braces(self, what: str = "") -> None:
        depth, start = 0, self.at
        for match in re.compile(r"[{}]").finditer(self.text, self.at):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                self.at = match.end()
                return
        raise self._error(start, f"{what} has no closing brace" if what else "missing '}'")

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def _error(self, position: int, message: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"PTX line {self._line(position)}: {message}")


class _Body:
    """Parses one kernel body: scopes, registers, labels, instructions."""

    def __init__(self, parser: _Parser, module: ParsedModule):
        self.parser = parser
        self.module = module
        self.registers: list[Register] = []
        self.instructions: list[Instruction] = []
        self.variables: dict[str, Variable] = {}
        self.branch_targets: dict[str, tuple[_Scope, list[str]]] = {}
        self.pending: list[tuple[Instruction, _Scope, list[str]]] = []
        self.calls: list[str] = []
        """The functions whose bodies are being put in place of their calls, outermost first."""
        self.local_top = 0
        self.local_bytes = 0
        self.carry: Register | None = None
        """The hidden register of the carry flag, in kernels that use it (PTX ISA 9.7.2)."""
        self.source = ("", "")
        self.sources: list[tuple[str, str]] = []

    def kernel(self, kernel: Kernel) -> None:
        """Parse the body that begins at the parser's position, and give the kernel its instructions."""
        self._statements(None, f"kernel '{kernel.name}'")
        self._resolve_labels()
        self.parser.sources[kernel.name] = self.sources
        kernel.instructions, kernel.register_count, kernel.variables = (
            self.instructions,
            len(self.registers),
            self.variables,
        )
        kernel.local_bytes = self.local_bytes

    def _statements(self, scope: _Scope | None, what: str) -> None:
        """The statements in braces at the parser's position. scope: of a function's parameters."""
        parser = self.parser
        text = parser.text
        outermost = scope
        # Line numbers are counted on from the last statement: one pass over the text.
        counted_at, counted_line = parser.at, parser._line(parser.at)
        while True:
            if not parser._skip_space():
                raise parser._error(len(text) - 1, f"{what} has no closing brace")
            counted_line += text.count("\n", counted_at, parser.at)
            counted_at = parser.at
            character = text[parser.at]
            if character == "{":
                parser.at += 1
                scope = _Scope(scope, local_top=self.local_top)
                continue
            if character == "}":
                parser.at += 1
                assert scope is not None
                # Frames of scopes that follow one another share their place in local memory.
                self.local_top = scope.local_top
                scope = scope.parent
                if scope is outermost:
                    break
                continue
            if parser._file():
                continue
            location = parser._take(_LOC)
            if location:
                # Files may be declared behind the kernels: the number becomes a name at the end.
                self.source = (location[1], location[2])
                continue
            assert scope is not None
            label = parser._take(_LABEL)
            if label:
                scope.labels[label.group(1)] = len(self.instructions)
                parser._skip_space()
                if text.startswith(".branchtargets", parser.at):
                    names = parser._until(";").removeprefix(".branchtargets").split(",")
                    self.branch_targets[label.group(1)] = (scope, [n.strip() for n in names])
                elif text.startswith((".callprototype", ".calltargets"), parser.at):
                    parser._until(";")
                continue
            start = parser.at
            statement = parser._until(";").strip()
            if statement.startswith("."):
                self._declaration(statement, scope, start)
            elif statement:
                self._instruction(statement, scope, counted_line)

    def _declaration(self, statement: str, scope: _Scope, start: int) -> None:
        # A type may follow without a blank: ".reg.b32 x".
        words = _DIRECTIVE.sub(r"\1 ", statement, count=1).split(None, 1)
        if words[0] == ".reg":
            kind, names = words[1].split(None, 1)
            kind = kind.strip(".")
            if kind != "pred" and kind not in TYPE_BYTES:
                raise self.parser._error(start, f"registers of type '.{kind}' are not supported")
            for item in names.split(","):
                item = item.strip()
                ranged = _RANGE.match(item)
                if ranged:
                    scope.ranges[ranged.group(1)] = (kind, int(ranged.group(2)))
                else:
                    scope.registers[item] = self._new_register(item, kind)
        elif words[0] in (".shared", ".local", ".param"):
            self.parser.at = start + len(words[0])
            for variable in self.parser._variables(words[0][1:], external=False):
                if variable.space == "shared":
                    self._declare_shared(variable, scope)
                else:
                    self._declare_local(variable, scope)
        elif words[0] not in (".pragma", ".maxnreg"):
            raise self.parser._error(start, f"unknown directive '{words[0]}' in a kernel body")

    def _declare_shared(self, variable: Variable, scope: _Scope) -> None:
        """There is one for all calls of a function."""
        name = "::".join((*self.calls, variable.name)) if self.calls else variable.name
        scope.variables[variable.name] = name
        self.variables[name] = replace(variable, name=name)

    def _declare_local(self, variable: Variable, scope: _Scope) -> str:
        """A place in the thread's frame, for a .local variable or for a parameter of a call; returns its name."""
        name = f"{variable.name}#{len(self.variables)}"
        scope.variables[variable.name] = name
        offset = -(-self.local_top // variable.align) * variable.align
        self.variables[name] = replace(variable, name=name, space="local", offset=offset)
        self.local_top = offset + variable.size
        self.local_bytes = max(self.local_bytes, self.local_top)
        return name

    def _find_variable(self, name: str, scope: _Scope | None) -> str | None:
        """The variable a name stands for in a scope."""
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return name if name in self.module.variables else None

    def _new_register(self, name: str, kind: str) -> Register:
        register = Register(len(self.registers), name, kind)
        self.registers.append(register)
        return register

    def _find_register(self, name: str, scope: _Scope | None) -> Register | None:
        while scope is not None:
            if name in scope.registers:
                return scope.registers[name]
            match = re.match(r"(.*?)(\d+)$", name)
            if match and match.group(1) in scope.ranges:
                kind, count = scope.ranges[match.group(1)]
                if int(match.group(2)) < count:
                    return scope.registers.setdefault(name, self._new_register(name, kind))
            scope = scope.parent
        return None

    def _instruction(self, statement: str, scope: _Scope, line: int) -> None:
        guard, rest = None, statement
        negated = statement.startswith("@!")
        if statement.startswith("@"):
            guard_text, rest = statement[1:].split(None, 1)
            guard = self._find_register(guard_text.lstrip("!"), scope)
            if guard is None:
                raise PtxSyntaxError(f"PTX line {line}: unknown predicate '{guard_text}'")
        word = _OPCODE.match(rest)
        if word is None:
            raise PtxSyntaxError(f"PTX line {line}: cannot understand '{statement[:40]}'")
        opcode, *modifiers = word.group().split(".")
        if opcode == "call":
            self._call(statement, _split(rest[word.end() :]), scope, line, guard, negated)
            return
        if opcode == "ret" and self.calls:
            # A call is its function's body: it ends where that does.
            opcode, rest = "bra", f"bra {_RETURN}"
        operands = [] if opcode == "bra" else self._operands(rest[word.end() :], scope, line)
        if "cc" in modifiers or opcode in _CARRY_IN:
            operands = self._with_carry(opcode, "cc" in modifiers, operands, line)
        instruction = Instruction(
            len(self.instructions), line, _SPACE.sub(" ", statement), opcode, tuple(modifiers), operands, guard, negated
        )
        self.instructions.append(instruction)
        self.sources.append(self.source)
        if opcode == "bra":
            self.pending.append((instruction, scope, [rest.split()[-1]]))
        elif opcode == "brx":
            self.pending.append((instruction, scope, []))

    def _operands(self, text: str, scope: _Scope, line: int) -> list[Operand]:
        return [self._operand(part, scope, line) for part in _split(text)]

    # ---- calls ----

    def _call(
        self, statement: str, parts: list[str], scope: _Scope, line: int, guard: Register | None, negated: bool
    ) -> None:
        """``call (results), name, (arguments)``: the function's body takes its place, with registers of its own.

        What has no body, or calls itself, stays a call, which only the functions of the CUDA system survive.
        """
        groups = [p[1:-1] if p.startswith("(") else None for p in parts]
        results = _split(groups[0]) if groups and groups[0] is not None else []
        named = parts[1 if groups and groups[0] is not None else 0 :]
        arguments = _split(named[1][1:-1]) if len(named) > 1 and named[1].startswith("(") else []
        name = self.parser.aliases.get(named[0], named[0]) if named else ""
        function = self.parser.functions.get(name)
        inlined = function is not None and name not in self.calls and len(self.instructions) < _MOST_INSTRUCTIONS
        if inlined and function is not None:
            if len(results) != len(function.results) or len(arguments) != len(function.parameters):
                raise PtxSyntaxError(f"PTX line {line}: the call of '{name}' does not fit its declaration")
            self._inline(function, results, arguments, scope, line, guard, negated)
            return
        operands: list[Operand] = [
            Label(name),
            *(Vector(tuple(self._operand(x, scope, line) for x in g)) for g in (results, arguments)),
        ]
        index = len(self.instructions)
        text = _SPACE.sub(" ", statement)
        self.instructions.append(Instruction(index, line, text, "call", (), operands, guard, negated))
        self.sources.append(self.source)

    def _inline(
        self,
        function: Function,
        results: list[str],
        arguments: list[str],
        scope: _Scope,
        line: int,
        guard: Register | None,
        negated: bool,
    ) -> None:
        parser = self.parser
        top, source, after = self.local_top, self.source, parser.at
        frame = _Scope(None, local_top=top)
        caller = _Scope(scope, local_top=top)
        if guard is not None:
            around = Instruction(len(self.instructions), line, "bra", "bra", (), [], guard, not negated)
            self.instructions.append(around)
            self.sources.append(self.source)
            self.pending.append((around, caller, [_RETURN]))
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            self._pass(parameter, argument, frame, caller, line)
        for parameter, result in zip(function.results, results, strict=True):
            self._take(parameter, result, frame, caller)
        self.calls.append(function.name)
        parser.at = function.body
        self._statements(frame, f"function '{function.name}'")
        frame.labels[_RETURN] = len(self.instructions)
        self.calls.pop()
        parser.at, self.source = after, source
        for parameter, result in zip(function.results, results, strict=True):
            kind, variable = _plain(parameter), self._find_variable(result, scope)
            if parameter.in_register:
                caller.registers["%result"] = frame.registers[parameter.name]
                move = f"st.param.{kind} [{result}], %result" if variable else f"mov.{kind} {result}, %result"
                self._instruction(move, caller, line)
            elif variable is None and result != "_":
                self._instruction(f"ld.param.{kind} {result}, [{parameter.name}]", caller, line)
        caller.labels[_RETURN] = len(self.instructions)
        self.local_top = top

    def _take(self, parameter: Parameter, result: str, frame: _Scope, caller: _Scope) -> None:
        """Let a result's name stand for the caller's .param variable, or for something to copy from afterwards."""
        variable = self._find_variable(result, caller)
        if parameter.in_register:
            frame.registers[parameter.name] = self._new_register(parameter.name, _plain(parameter))
        elif variable is not None:
            frame.variables[parameter.name] = variable
        else:
            declared = Variable(parameter.name, "local", parameter.align, parameter.size, False)
            frame.variables[parameter.name] = self._declare_local(declared, caller)

    def _pass(self, parameter: Parameter, argument: str, frame: _Scope, caller: _Scope, line: int) -> None:
        """Let a parameter's name stand for the caller's .param variable, or for a copy of a register."""
        variable = self._find_variable(argument, caller)
        if variable is not None and variable in self.variables and not parameter.in_register:
            frame.variables[parameter.name] = variable
            return
        kind = _plain(parameter)
        if parameter.in_register:
            register = self._new_register(parameter.name, kind)
            frame.registers[parameter.name] = caller.registers["%argument"] = register
            load = f"ld.param.{kind} %argument, [{argument}]" if variable else f"mov.{kind} %argument, {argument}"
            self._instruction(load, caller, line)
            return
        declared = Variable(parameter.name, "local", parameter.align, parameter.size, False)
        frame.variables[parameter.name] = self._declare_local(declared, caller)
        self._instruction(f"st.param.{kind} [{parameter.name}], {argument}", caller, line)

    def _with_carry(self, opcode: str, out: bool, operands: list[Operand], line: int) -> list[Operand]:
        """The condition code register's carry, which extended-precision arithmetic names nowhere, as an operand."""
        if not operands:
            raise PtxSyntaxError(f"PTX line {line}: {opcode} without operands")
        if self.carry is None:
            self.carry = self._new_register("CC.CF", "b32")
        first: Operand = Dual(operands[0], self.carry) if out else operands[0]
        return [first, *operands[1:], *([self.carry] if opcode in _CARRY_IN else [])]

    def _resolve_labels(self) -> None:
        for instruction, scope, names in self.pending:
            if instruction.opcode == "brx":
                table = instruction.operands[-1]
                if not isinstance(table, Label) or table.name not in self.branch_targets:
                    raise PtxSyntaxError(f"PTX line {instruction.line}: brx.idx without a .branchtargets table")
                scope, names = self.branch_targets[table.name]
            for name in names:
                search: _Scope | None = scope
                while search is not None and name not in search.labels:
                    search = search.parent
                if search is None:
                    raise PtxSyntaxError(f"PTX line {instruction.line}: unknown label '{name}'")
                instruction.targets.append(search.labels[name])

    # ---- operands ----

    def _operand(self, text: str, scope: _Scope, line: int) -> Operand:
        if text == "_":
            return Sink()
        if text.startswith("{"):
            return Vector(tuple(self._operand(part, scope, line) for part in _split(text[1:-1])))
        if text.startswith("["):
            return self._memory(text[1:-1].strip(), scope, line)
        if text.startswith("!"):
            register = self._find_register(text[1:], scope)
            if register is None:
                raise PtxSyntaxError(f"PTX line {line}: unknown predicate '{text}'")
            return Negated(register)
        if "|" in text:
            first, second = text.split("|")
            return Dual(self._operand(first.strip(), scope, line), self._operand(second.strip(), scope, line))
        number = Immediate(32) if text == "WARP_SZ" else _number(text)
        if number is not None:
            return number
        register = self._find_register(text, scope)
        if register is not None:
            return register
        if _SPECIAL.match(text):
            return Special(text)
        if text.startswith("%"):
            raise PtxSyntaxError(f"PTX line {line}: unknown register '{text}'")
        symbol = re.match(r"([\w$]+)\s*(?:\+\s*(-?\w+))?$", text)
        variable = self._find_variable(symbol.group(1), scope) if symbol else None
        if symbol and variable is not None:
            return Symbol(variable, int(symbol.group(2) or "0", 0))
        # A parameter symbol or a label: which one is known from the instruction.
        return Label(text)

    def _memory(self, text: str, scope: _Scope, line: int) -> Memory:
        parts = _split(text)
        coordinates = None
        if len(parts) > 1:
            vector = self._operand(parts[1], scope, line)
            coordinates = vector.elements if isinstance(vector, Vector) else (vector,)
        match = re.match(r"([%\w$.]+)\s*(?:([+-])\s*(-?\w+))?$", parts[0].strip())
        if not match:
            raise PtxSyntaxError(f"PTX line {line}: cannot read the address '[{text}]'")
        base = self._operand(match.group(1), scope, line)
        if isinstance(base, Label):
            base = Symbol(base.name)
        if not isinstance(base, Register | Symbol | Immediate):
            raise PtxSyntaxError(f"PTX line {line}: cannot read the address '[{text}]'")
        offset = int(match.group(3), 0) if match.group(3) else 0
        return Memory(base, -offset if match.group(2) == "-" else offset, coordinates)


def _split(text: str) -> list[str]:
    """Split operands at commas outside brackets and braces."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _number(text: str) -> Immediate | None:
    sign = -1 if text.startswith("-") else 1
    float_match = _FLOAT.match(text)
    if float_match:
        if float_match.group(1):
            return Immediate(int(float_match.group(1), 16), 32)
        return Immediate(int(float_match.group(2), 16), 64)
    if _DECIMAL.match(text):
        return Immediate(int(np.float64(text).view(np.uint64)), 64, decimal=True)
    if _NUMBER.match(text):
        digits = text.lstrip("+-").rstrip("U")
        base = 8 if len(digits) > 1 and digits[0] == "0" and digits.isdigit() else 0
        return Immediate(sign * int(digits, base))
    return None


def _plain(parameter: Parameter) -> str:
    """The untyped name of a scalar parameter's type."""
    return "pred" if parameter.type == "pred" else f"b{8 * parameter.size}"
