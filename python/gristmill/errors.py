"""Errors that users read: what is wrong, where, and one fix that can be pasted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """A span in a source file: lines and columns from 1; `text` is the author's line, `end` is exclusive."""

    file: str
    line: int
    column: int
    end: int
    text: str


class GristmillError(Exception):
    """Base of all errors raised by Gristmill; `fix` says what to write instead."""

    def __init__(self, message: str, fix: str | None = None, position: Position | None = None):
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.position = position
        self.calls: list[Position] = []

    def __str__(self) -> str:
        lines = [f"{_place(self.position)}error: {self.message}"] if self.position else [self.message]
        if self.position:
            lines += _quote(self.position)
        for call in self.calls:
            lines += [f"  called from {call.file}:{call.line}", *_quote(call)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class DeclarationError(GristmillError):
    """A kernel's decorator, annotations or bounds do not fit together."""


class KernelError(GristmillError):
    """A kernel's body cannot be compiled; the frontend adds the position."""


class SimulationError(GristmillError):
    """A simulated kernel did what is undefined on a device: reported at the kernel's line that did it."""


class BuildError(GristmillError):
    """Building images failed: names kernel, specialisation and target."""


def _place(position: Position) -> str:
    return f"{position.file}:{position.line}:{position.column}: "


def _quote(position: Position) -> list[str]:
    gutter = f"{position.line:>5} | "
    width = max(1, position.end - position.column)
    return [gutter + position.text.rstrip(), " " * (len(gutter) + position.column - 1) + "^" * width]
