"""Arrays of sizes in Inductor's C++ are declared where their names are used."""

from itertools import count

from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch.utils._ordered_set import OrderedSet

from engine.build.array_names import lasting_array_names


class Lines:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)


def make_wrapper():
    wrapper = CppWrapperCpu.__new__(CppWrapperCpu)
    wrapper.codegen_int_array_var_cache = {}
    wrapper.int_array_id, wrapper.declared_int_array_vars = count(), OrderedSet()
    return wrapper


def test_every_writer_has_a_declaration_of_its_own():
    wrapper = make_wrapper()
    with lasting_array_names():
        for _ in range(20):  # each may get the memory, and so the id, of the one before
            lines = Lines()
            name = wrapper.codegen_int_array_var("{1L}", lines.write, known_statically=True)
            assert [f" {name}[]" in line for line in lines.lines] == [True]
            del lines


def test_one_writer_declares_an_array_once():
    wrapper, lines = make_wrapper(), Lines()
    with lasting_array_names():
        names = {wrapper.codegen_int_array_var("{1L}", lines.write, known_statically=True) for _ in range(5)}
    assert len(names) == len(lines.lines) == 1


def test_inductor_is_left_as_it_was():
    before = CppWrapperCpu.codegen_int_array_var
    with lasting_array_names():
        assert CppWrapperCpu.codegen_int_array_var is not before
    assert CppWrapperCpu.codegen_int_array_var is before
