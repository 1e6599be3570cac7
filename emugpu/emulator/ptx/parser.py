"""Parses PTX text, as compilers emit it, into the data of ``ast``.

The grammar follows PTX ISA 9.1, sections 4 (syntax), 5 (state spaces, types) and 11 (directives). This file parses the
module and the heads of its kernels and functions; `body` parses their bodies.
"""

from __future__ import annotations

import re

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.ptx.ast import Function, ParsedModule, PtxKernel
from emugpu.emulator.ptx.body import LOC, Body
from emugpu.emulator.ptx.constants import integer
from emugpu.emulator.ptx.declarations import parameters, variables
from emugpu.emulator.ptx.scanner import Scanner

_VERSION = re.compile(r"\s*([\d.]+)")
_TARGET = re.compile(r"\s*(\w+(?:\s*,\s*\w+)*)")
_NUMBERS = re.compile(r"(?:\s*\d\w*\s*,?)*\s*")


def parse_module(text: str) -> ParsedModule:
    """Parses a whole PTX file.

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


class _Parser(Scanner):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.sources: dict[str, list[tuple[str, str]]] = {}
        """For each kernel, the (file number, line) of each instruction (.loc)."""
        self.functions: dict[str, Function] = {}
        self.aliases: dict[str, str] = {}
        self._entries: list[tuple[PtxKernel, int]] = []
        """Kernels whose instructions are not parsed yet, and where their bodies begin."""

    def bodies(self, module: ParsedModule) -> None:
        """Parses the kernels' instructions, now that every variable and function is known."""
        for kernel, start in self._entries:
            self.at = start
            self.sources[kernel.name] = Body(self, module, self.functions, self.aliases).kernel(kernel)

    # ---- module level ----

    def module(self) -> ParsedModule:
        module = ParsedModule("", "", {}, {})
        while self.skip_space():
            if self.file() or self.take(LOC):
                continue
            start = self.at
            word = self.word()
            if word == ".version":
                module.version = self.value(_VERSION)
            elif word == ".target":
                module.target = self.value(_TARGET)
            elif word == ".address_size":
                if self.value(_VERSION) != "64":
                    raise self.error(start, "only 64-bit addresses are supported")
            elif word == ".section":
                self.skip_braces()
            elif word == ".pragma":
                self.until(";")
            elif word == ".alias":
                alias, _, name = self.until(";").partition(",")
                self.aliases[alias.strip()] = name.strip()
            elif word in (".visible", ".weak", ".extern", ".common", ".global", ".const", ".shared", ".entry", ".func"):
                self.at = start
                self._module_item(module)
            else:
                raise self.error(start, f"unknown directive '{word}' at module scope")
        if not module.target:
            raise PtxSyntaxError("not a PTX module: no .target directive; give the text of a .ptx file")
        return module

    def _module_item(self, module: ParsedModule) -> None:
        start = self.at
        external = False
        while True:
            self.skip_space()
            word = self.word()
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
                for variable in variables(self, word[1:], external):
                    module.variables[variable.name] = variable
                return
            else:
                raise self.error(start, f"unknown directive '{word}' at module scope")

    def _function(self) -> None:
        """Parses ``.func (results) name (parameters)``, with or without a body."""
        self.skip_space()
        results = parameters(self) if self.text[self.at] == "(" else []
        self.skip_space()
        name = self.word()
        self.skip_space()
        taken = parameters(self) if self.text[self.at : self.at + 1] == "(" else []
        while self.skip_space():
            if self.text[self.at] == ";":
                self.at += 1
                return
            if self.text[self.at] == "{":
                self.functions[name] = Function(name, tuple(results), tuple(taken), self.at)
                self.skip_braces(f"function '{name}'")
                return
            self.at += 1
        raise self.error(len(self.text) - 1, ".func without an end")

    def _kernel(self, module: ParsedModule) -> PtxKernel:
        self.skip_space()
        line = self.line(self.at)
        name = self.word()
        self.skip_space()
        taken = parameters(self) if self.text[self.at : self.at + 1] == "(" else []
        directives: dict[str, tuple[int, ...]] = {}
        while True:
            self.skip_space()
            if self.text[self.at] == "{":
                break
            start = self.at
            word = self.word()
            if not word.startswith("."):
                raise self.error(start, f"expected a kernel directive or '{{', found '{word}'")
            if word == ".pragma":
                self.until(";")
                continue
            rest = _NUMBERS.match(self.text, self.at)
            assert rest is not None
            self.at = rest.end()
            directives[word[1:]] = tuple(integer(n) for n in re.findall(r"\w+", rest.group()))
        kernel = PtxKernel(name, line, taken, directives, [], 0, {}, self.lines)
        self._entries.append((kernel, self.at))
        self.skip_braces(f"kernel '{name}'")
        return kernel
