"""A fault of Inductor's C++ (torch 2.11 to 2.13 at least) that made one build in some fail to compile:
"'int_array_3' was not declared in this scope".

It remembers under which name an array of sizes was declared by the id of what writes the lines. Such an
object may be gone and its id another's: then a name is used that was declared elsewhere, or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Write = Callable[..., None]


@contextmanager
def lasting_array_names() -> Iterator[None]:
    """While it lasts no writer goes, so that every id is one writer's; the same writer is one object."""
    # Inductor imports redis where that is installed, and all of itself: for who compiles, not who imports us.
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu  # noqa: PLC0415

    declare = CppWrapperCpu.codegen_int_array_var
    writers: dict[tuple[int, str], Write] = {}

    def declare_once(self: Any, int_array: str, writeline: Write, *rest: Any, **named: Any) -> str:
        owner = getattr(writeline, "__self__", writeline)
        kept = writers.setdefault((id(owner), getattr(writeline, "__name__", "")), writeline)
        return declare(self, int_array, kept, *rest, **named)

    CppWrapperCpu.codegen_int_array_var = declare_once  # type: ignore[method-assign]
    try:
        yield
    finally:
        CppWrapperCpu.codegen_int_array_var = declare  # type: ignore[method-assign]
