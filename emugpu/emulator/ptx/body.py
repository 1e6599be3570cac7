"""The body of a kernel: scopes, registers, labels, instructions and their operands (PTX ISA 4).

The parser replaces a call of a function by the function's body, with registers and local memory of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.ptx.ast import (
    TYPE_BYTES,
    Dual,
    Function,
    Immediate,
    Instruction,
    Label,
    MemoryOperand,
    Negated,
    Operand,
    Parameter,
    ParsedModule,
    PtxKernel,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from emugpu.emulator.ptx.constants import integer, number
from emugpu.emulator.ptx.declarations import plain, variables
from emugpu.emulator.ptx.qualifiers import in_order
from emugpu.emulator.ptx.scanner import SPACE, Scanner, split

_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
_USED_BYTES = re.compile(r"\.pragma\s+\"used_bytes_mask\s+(0[xX][0-9a-fA-F]+|\d+)\"")
_OPCODE = re.compile(r"\w+(?:\s*\.\s*[\w:]+)*")
_DIRECTIVE = re.compile(r"^(\.(?:reg|shared|local|param))(?=\.)")
_RANGE = re.compile(r"(%?[A-Za-z_$][\w$]*?)\s*<\s*(\w+)\s*>$")
_NUMBER = re.compile(r"[\d.+\-~!(]|WARP_SZ\b")
"""The start of a number or of a constant expression."""
_ELEMENT = re.compile(r"([%\w$.]+)\s*\[(.+)\]$", re.S)
_SUM = re.compile(r"([%\w$.]+)\s*(?:([+-])(.+))?$", re.S)
_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(laneid|warpid|nwarpid|cluster_ctarank|cluster_nctarank|is_explicit_cluster|smid|nsmid|gridid|clock|clock_hi"
    r"|clock64|pm[0-7](?:_64)?|envreg(?:[12]?\d|3[01])|reserved_smem_offset_(?:begin|end|cap|[01])|current_graph_exec"
    r"|globaltimer|globaltimer_lo|globaltimer_hi|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size"
    r"|total_smem_size|aggr_smem_size)$"
)

_RETURN = "<return>"
"""The label after a function's body that replaces a call."""
_MOST_INSTRUCTIONS = 200_000
"""The most instructions that a kernel may have with its inlined functions. Calls beyond that are not inlined."""
_CARRY_IN = ("addc", "subc", "madc")
"""Instructions that read the carry flag."""


def _leave_out(load: Instruction, used_bytes: int) -> None:
    """Replaces elements of a load of which no byte is used by sinks (PTX ISA 11.3, pragma "used_bytes_mask")."""
    written = load.operands[0]
    found = written.elements if isinstance(written, Vector) else (written,)
    size = TYPE_BYTES.get(load.modifiers[-1], 0)
    is_used = [used_bytes >> n * size & (1 << size) - 1 != 0 for n in range(len(found))]
    load.unused = tuple(e for e, used in zip(found, is_used, strict=True) if not used and isinstance(e, Register))
    kept = tuple(e if used else Sink() for e, used in zip(found, is_used, strict=True))
    load.operands[0] = Vector(kept) if isinstance(written, Vector) else kept[0]


@dataclass
class Scope:
    """A brace scope: register names and ranges, labels, and the enclosing scope."""

    parent: Scope | None
    registers: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    """For each variable declared here, the kernel's own name for it."""
    local_top: int = 0
    """The local memory in use at the start of the scope."""


class Body:
    """Parses one kernel body: scopes, registers, labels, instructions."""

    def __init__(
        self, scanner: Scanner, module: ParsedModule, functions: dict[str, Function], aliases: dict[str, str]
    ) -> None:
        self.scanner = scanner
        self.module = module
        self.functions = functions
        self.aliases = aliases
        self.registers: list[Register] = []
        self.instructions: list[Instruction] = []
        self.variables: dict[str, Variable] = {}
        self.parameters: list[Parameter] = []
        self.branch_targets: dict[str, tuple[Scope, list[str]]] = {}
        self.pending: list[tuple[Instruction, Scope, list[str]]] = []
        self.calls: list[str] = []
        """The functions that are being inlined, outermost first."""
        self.local_top = 0
        self.local_bytes = 0
        self.used_bytes: int | None = None
        """For the next instruction, bit n says whether byte n is used (.pragma "used_bytes_mask")."""
        self.carry: Register | None = None
        """The hidden register of the carry flag, in kernels that use it (PTX ISA 9.7.2)."""
        self.source = ("", "")
        self.sources: list[tuple[str, str]] = []

    def kernel(self, kernel: PtxKernel) -> list[tuple[str, str]]:
        """Parses the body at the scanner's position, and gives the kernel its instructions.

        Returns (file number, line) of the source of each instruction (.loc).
        """
        self.parameters = kernel.parameters
        self._statements(None, f"kernel '{kernel.name}'")
        self._resolve_labels()
        if not self.instructions:
            # A thread exits at the end of the text. A warp needs an instruction to exit, even in an empty body.
            self.instructions.append(Instruction(0, kernel.line, "ret", "ret", (), []))
            self.sources.append(("", ""))
        kernel.instructions, kernel.variables = self.instructions, self.variables
        kernel.register_count, kernel.local_bytes = len(self.registers), self.local_bytes
        return self.sources

    def _statements(self, scope: Scope | None, what: str) -> None:
        """Parses the statements in braces at the scanner's position.

        scope: that of a function's parameters, or None.
        """
        scanner = self.scanner
        text = scanner.text
        outermost = scope
        # Line numbers are counted from the last statement, so that this takes one pass over the text.
        counted_at, counted_line = scanner.at, scanner.line(scanner.at)
        while True:
            if not scanner.skip_space():
                raise scanner.error(len(text) - 1, f"{what} has no closing brace")
            counted_line += text.count("\n", counted_at, scanner.at)
            counted_at = scanner.at
            character = text[scanner.at]
            if character == "{":
                scanner.at += 1
                scope = Scope(scope, local_top=self.local_top)
                continue
            if character == "}":
                scanner.at += 1
                assert scope is not None
                # Scopes that follow one another share their place in local memory.
                self.local_top = scope.local_top
                scope = scope.parent
                if scope is outermost:
                    break
                continue
            if scanner.file():
                continue
            location = scanner.take(LOC)
            if location:
                # Files may be declared after the kernels, so the number is replaced by a name at the end.
                self.source = (location[1], location[2])
                continue
            assert scope is not None
            label = scanner.take(_LABEL)
            if label:
                scope.labels[label.group(1)] = len(self.instructions)
                scanner.skip_space()
                if text.startswith(".branchtargets", scanner.at):
                    names = scanner.until(";").removeprefix(".branchtargets").split(",")
                    self.branch_targets[label.group(1)] = (scope, [n.strip() for n in names])
                elif text.startswith((".callprototype", ".calltargets"), scanner.at):
                    scanner.until(";")
                continue
            start = scanner.at
            statement = scanner.until(";").strip()
            try:
                if statement.startswith("."):
                    self._declaration(statement, scope, start)
                elif statement:
                    self._instruction(statement, scope, counted_line)
            except (ValueError, IndexError) as error:  # text that is no statement at all
                raise scanner.error(start, f"cannot understand '{statement.splitlines()[0][:60]}'") from error

    def _declaration(self, statement: str, scope: Scope, start: int) -> None:
        # A type may follow without a space: ".reg.b32 x".
        words = _DIRECTIVE.sub(r"\1 ", statement, count=1).split(None, 1)
        if words[0] == ".reg":
            kind, names = words[1].split(None, 1)
            kind = kind.strip(".")
            if kind != "pred" and kind not in TYPE_BYTES:
                vector = "; declare a register for each element" if kind in ("v2", "v4") else ""
                raise self.scanner.error(start, f"registers of type '.{kind}' are not supported{vector}")
            for item in names.split(","):
                item = item.strip()
                ranged = _RANGE.match(item)
                if ranged:
                    scope.ranges[ranged.group(1)] = (kind, integer(ranged.group(2)))
                else:
                    scope.registers[item] = self._new_register(item, kind)
        elif words[0] in (".shared", ".local", ".param"):
            self.scanner.at = start + len(words[0])
            for variable in variables(self.scanner, words[0][1:], external=False):
                if variable.space == "shared":
                    self._declare_shared(variable, scope)
                else:
                    self._declare_local(variable, scope)
        elif used := _USED_BYTES.match(statement):
            self.used_bytes = int(used[1], 0)
        elif words[0] not in (".pragma", ".maxnreg"):
            raise self.scanner.error(start, f"unknown directive '{words[0]}' in a kernel body")

    def _declare_shared(self, variable: Variable, scope: Scope) -> None:
        """Declares a shared variable. All calls of a function share it."""
        name = "::".join((*self.calls, variable.name)) if self.calls else variable.name
        scope.variables[variable.name] = name
        self.variables[name] = replace(variable, name=name)

    def _declare_local(self, variable: Variable, scope: Scope) -> str:
        """Makes a place in the thread's frame for a .local variable or a parameter of a call. Returns its name."""
        name = f"{variable.name}#{len(self.variables)}"
        scope.variables[variable.name] = name
        offset = -(-self.local_top // variable.align) * variable.align
        self.variables[name] = replace(variable, name=name, space="local", offset=offset)
        self.local_top = offset + variable.size
        self.local_bytes = max(self.local_bytes, self.local_top)
        return name

    def _find_variable(self, name: str, scope: Scope | None) -> str | None:
        """Returns the variable that a name denotes in a scope, or None."""
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return name if name in self.module.variables else None

    def _new_register(self, name: str, kind: str) -> Register:
        register = Register(len(self.registers), name, kind)
        self.registers.append(register)
        return register

    def _find_register(self, name: str, scope: Scope | None) -> Register | None:
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

    def _instruction(self, statement: str, scope: Scope, line: int) -> None:
        guard, rest = None, statement
        negated = statement.startswith("@") and statement[1:].lstrip().startswith("!")
        if statement.startswith("@"):
            guard, rest = self._guard(statement[1:].lstrip("! \t\n"), scope, line)
        word = _OPCODE.match(rest)
        if word is None:
            raise PtxSyntaxError(f"PTX line {line}: cannot understand '{statement[:40]}'")
        opcode, *modifiers = in_order(SPACE.sub("", word.group()))
        if opcode == "call":
            self._call(statement, split(rest[word.end() :]), scope, line, guard, negated)
            return
        if opcode == "ret" and self.calls:
            # A call is replaced by its function's body and ends at the body's end.
            opcode, rest = "bra", f"bra {_RETURN}"
        parts = [] if opcode == "bra" else split(rest[word.end() :])
        if opcode in ("ld", "ldu", "st"):
            parts = [f"[{part}]" if _ELEMENT.match(part) else part for part in parts]  # ld.b32 %r1, array[2]
        operands = [self._operand(part, scope, line) for part in parts]
        if "cc" in modifiers or opcode in _CARRY_IN:
            operands = self._with_carry(opcode, "cc" in modifiers, operands, line)
        instruction = Instruction(
            len(self.instructions), line, SPACE.sub(" ", statement), opcode, tuple(modifiers), operands, guard, negated
        )
        if self.used_bytes is not None and opcode in ("ld", "ldu"):
            _leave_out(instruction, self.used_bytes)
        self.used_bytes = None
        self.instructions.append(instruction)
        self.sources.append(self.source)
        if opcode == "bra":
            self.pending.append((instruction, scope, [rest.split()[-1]]))
        elif opcode == "brx":
            self.pending.append((instruction, scope, []))

    def _guard(self, text: str, scope: Scope, line: int) -> tuple[Register, str]:
        """Returns the predicate at the start of a statement, and the rest. There may be no space between them."""
        first = text.split(None, 1)[0]
        for end in range(len(first), 0, -1):
            register = self._find_register(first[:end], scope)
            if register is not None:
                return register, text[end:].lstrip()
        raise PtxSyntaxError(f"PTX line {line}: unknown predicate '{first}'")

    # ---- calls ----

    def _call(
        self, statement: str, parts: list[str], scope: Scope, line: int, guard: Register | None, negated: bool
    ) -> None:
        """Parses ``call (results), name, (arguments)``. The function's body, with registers of its own, replaces it.

        A function without a body, or one that calls itself, remains a call. Only calls of functions of the CUDA system
        can be executed.
        """
        groups = [p[1:-1] if p.startswith("(") else None for p in parts]
        results = split(groups[0]) if groups and groups[0] is not None else []
        named = parts[1 if groups and groups[0] is not None else 0 :]
        arguments = split(named[1][1:-1]) if len(named) > 1 and named[1].startswith("(") else []
        name = self.aliases.get(named[0], named[0]) if named else ""
        function = self.functions.get(name)
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
        text = SPACE.sub(" ", statement)
        self.instructions.append(Instruction(index, line, text, "call", (), operands, guard, negated))
        self.sources.append(self.source)

    def _inline(
        self,
        function: Function,
        results: list[str],
        arguments: list[str],
        scope: Scope,
        line: int,
        guard: Register | None,
        negated: bool,
    ) -> None:
        scanner = self.scanner
        top, source, after = self.local_top, self.source, scanner.at
        frame = Scope(None, local_top=top)
        caller = Scope(scope, local_top=top)
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
        scanner.at = function.body
        self._statements(frame, f"function '{function.name}'")
        frame.labels[_RETURN] = len(self.instructions)
        self.calls.pop()
        scanner.at, self.source = after, source
        for parameter, result in zip(function.results, results, strict=True):
            kind, variable = plain(parameter), self._find_variable(result, scope)
            if parameter.in_register:
                caller.registers["%result"] = frame.registers[parameter.name]
                move = f"st.param.{kind} [{result}], %result" if variable else f"mov.{kind} {result}, %result"
                self._instruction(move, caller, line)
            elif variable is None and result != "_":
                self._instruction(f"ld.param.{kind} {result}, [{parameter.name}]", caller, line)
        caller.labels[_RETURN] = len(self.instructions)
        self.local_top = top

    def _take(self, parameter: Parameter, result: str, frame: Scope, caller: Scope) -> None:
        """Binds a result's name to the caller's .param variable, or to a place from which it is copied afterwards."""
        variable = self._find_variable(result, caller)
        if parameter.in_register:
            frame.registers[parameter.name] = self._new_register(parameter.name, plain(parameter))
        elif variable is not None:
            frame.variables[parameter.name] = variable
        else:
            declared = Variable(parameter.name, "local", parameter.align, parameter.size, False)
            frame.variables[parameter.name] = self._declare_local(declared, caller)

    def _pass(self, parameter: Parameter, argument: str, frame: Scope, caller: Scope, line: int) -> None:
        """Binds a parameter's name to the caller's .param variable, or to a copy of a register."""
        variable = self._find_variable(argument, caller)
        if variable is not None and variable in self.variables and not parameter.in_register:
            frame.variables[parameter.name] = variable
            return
        kind = plain(parameter)
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
        """Adds the carry flag to the operands. Extended-precision arithmetic does not name it."""
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
                search: Scope | None = scope
                while search is not None and name not in search.labels:
                    search = search.parent
                if search is None:
                    raise PtxSyntaxError(f"PTX line {instruction.line}: unknown label '{name}'")
                instruction.targets.append(search.labels[name])

    # ---- operands ----

    def _operand(self, text: str, scope: Scope, line: int) -> Operand:
        if text == "_":
            return Sink()
        if text.startswith("{"):
            return Vector(tuple(self._operand(part, scope, line) for part in split(text[1:-1])))
        if text.startswith("["):
            return self._memory(text[1:-1].strip(), scope, line)
        if _NUMBER.match(text):
            literal = number(text)
            if literal is not None:
                return literal
        if text.startswith("!"):
            register = self._find_register(text[1:].lstrip(), scope)
            if register is None:
                raise PtxSyntaxError(f"PTX line {line}: unknown predicate '{text}'")
            return Negated(register)
        if "|" in text:
            first, second = text.split("|")
            return Dual(self._operand(first.strip(), scope, line), self._operand(second.strip(), scope, line))
        register = self._find_register(text, scope)
        if register is not None:
            return register
        if _SPECIAL.match(SPACE.sub("", text)):
            return Special(SPACE.sub("", text))
        if text.startswith("%"):
            raise PtxSyntaxError(f"PTX line {line}: unknown register '{text}'")
        name, offset = self._place(text, scope)
        variable = self._find_variable(name, scope)
        if variable is not None:
            return Symbol(variable, offset)
        # A parameter symbol or a label: the instruction decides which.
        return Label(text)

    def _memory(self, text: str, scope: Scope, line: int) -> MemoryOperand:
        parts = split(text)
        coordinates = None
        if len(parts) > 1:
            vector = self._operand(parts[1], scope, line)
            coordinates = vector.elements if isinstance(vector, Vector) else (vector,)
        try:
            name, offset = self._place(parts[0].strip(), scope)
        except ValueError:
            raise PtxSyntaxError(f"PTX line {line}: cannot read the address '[{text}]'") from None
        base = self._operand(name, scope, line)
        if isinstance(base, Label):
            base = Symbol(base.name)
        if not isinstance(base, Register | Symbol | Immediate):
            raise PtxSyntaxError(f"PTX line {line}: cannot read the address '[{text}]'")
        return MemoryOperand(base, offset, coordinates)

    def _place(self, text: str, scope: Scope) -> tuple[str, int]:
        """Returns the base of ``base + constant`` or ``array[constant]``, and the offset in bytes. Raises ValueError.

        An index counts elements, for arrays of vectors as well as for others (PTX ISA 6.4.2; ptxas).
        """
        indexed = _ELEMENT.match(text)
        if indexed:
            return indexed[1], integer(indexed[2]) * self._element(indexed[1], scope)
        found = _SUM.match(text)
        if not found:
            raise ValueError
        return found[1], integer(found[2] + found[3]) if found[3] else 0

    def _element(self, name: str, scope: Scope) -> int:
        """Returns the size of an element of an array."""
        variable = self._find_variable(name, scope)
        if variable is not None:
            return (self.variables.get(variable) or self.module.variables[variable]).element
        for parameter in self.parameters:
            if parameter.name == name:
                return TYPE_BYTES[parameter.type]
        raise ValueError
