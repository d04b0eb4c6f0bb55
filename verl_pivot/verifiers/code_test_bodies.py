"""Statements of one test -> its asserts, each after the statements whose effects it needs.

Variables are replaced by constants; loops over constants and helper functions are written out. A value that the program
returns or changes stays a variable of the sandbox, so that a later assert sees what earlier ones did to it.
"""

import ast
import builtins
import copy
from collections import Counter
from collections.abc import Mapping, Sequence

from verl_pivot.verifiers.code_operations import FUNCTIONS, MODULES
from verl_pivot.verifiers.code_setup import imported_names, is_constant, names_in
from verl_pivot.verifiers.code_test_file import TestFile, Told
from verl_pivot.verifiers.code_test_items import MAX_ASSERTS, items, parts, unreadable
from verl_pivot.verifiers.code_unittest import assert_of_unittest, expected_error

_MAX_DEPTH = 20


class TestBody:
    """Reads the statements of one test."""

    def __init__(
        self,
        file: TestFile,
        names: Mapping[str, ast.expr],
        story: Sequence[Told] = (),
        variables: frozenset[str] = frozenset(),
        depth: int = 0,
    ) -> None:
        """Begin a test.

        Args:
            file: The file of the test.
            names: {name: expression that stands for it}
            story: Statements that the sandbox runs before those of the test.
            variables: Names that these statements assign.
            depth: Number of helper functions and fixtures that are being read around it.
        """
        self.names = dict(names)
        self.story = list(story)
        self.variables = set(variables)
        self._shared: set[str] = set()
        self._used: set[Told] = set()
        self._file = file
        self._depth = depth

    @property
    def entry_point(self) -> str:
        """Name of the function under test."""
        return self._file.entry_point

    def fork(self) -> "TestBody":
        """A copy of this test, to continue from its present state."""
        return TestBody(self._file, self.names, self.story, frozenset(self.variables), self._depth)

    def read_test(self, statements: Sequence[ast.stmt]) -> None:
        """Add the asserts of a whole test to those of the file.

        Raises:
            ValueError: If one of its statements cannot be checked from outside the sandbox.
        """
        counts = Counter(name for statement in statements for name in _loaded(statement))
        self._shared = {name for name, count in counts.items() if count > 1}
        num_before = len(self.story)
        self.read(statements)
        for told in self.story[num_before:]:
            if isinstance(told.statement, ast.Expr) and told not in self._used:
                raise unreadable(told.statement)  # it may check something, and would never run

    def read(self, statements: Sequence[ast.stmt]) -> None:
        """Add the asserts of some statements to those of the file.

        Raises:
            ValueError: If one of the statements cannot be checked from outside the sandbox.
        """
        for statement in statements:
            self._file.count(statements=1)
            self._read_one(statement)

    def _read_one(self, statement: ast.stmt) -> None:
        match statement:
            case _ if isinstance(statement, ast.Pass) or is_docstring(statement) or _is_message(statement):
                return
            case ast.Import() | ast.ImportFrom():
                self._file.imports.update(dict.fromkeys(imported_names(statement), ast.unparse(statement)))
            case ast.Assert(test=test):
                self._promote(self._given(test) & self._shared)
                self._add(self.replaced(test))
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value) if name in self.names:
                self._assign(
                    statement.target, ast.BinOp(left=ast.Name(id=name, ctx=ast.Load()), op=operator, right=value)
                )
            case ast.Expr(value=ast.Call() as call):
                self._read_call(call)
            case _:
                self._read_block(statement)

    def _read_block(self, statement: ast.stmt) -> None:
        match statement:
            case ast.For(target=target, iter=rows, body=body, orelse=[]):
                for item in items(self.replaced(rows)):
                    self._bind(target, item)
                    self.read(body)
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call, optional_vars=None)], body=body):
                self._read_with(call, body)
            case ast.FunctionDef(name=name):
                self._file.functions[name] = statement
            case _:
                raise unreadable(statement)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and self._is_programs(self.replaced(value)):
            self._promote(names_in(value) & self._shared)
        value = self.replaced(value)
        if isinstance(target, ast.Attribute | ast.Subscript):
            self._promote(names_in(target))
            self._tell(ast.Assign(targets=[self.replaced(target)], value=value))
        else:
            self._bind(target, value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        """Bind the names of a target to a value whose own names are already replaced."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple | ast.List):
            for each, part in zip(target.elts, parts(value, len(target.elts)), strict=True):
                self._bind(each, part)
        elif not self._is_programs(value):
            if not isinstance(target, ast.Name):
                raise unreadable(target)
            self.names[target.id] = value
        else:
            names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
            fresh = {name: ast.Name(id=self._file.new_name(name), ctx=ast.Load()) for name in names}
            self.names.update(fresh)
            self.variables |= {each.id for each in fresh.values()}
            self._tell(ast.Assign(targets=[self.replaced(target)], value=value))

    def _read_with(self, call: ast.Call, body: Sequence[ast.stmt]) -> None:
        if ast.unparse(call.func).endswith(".subTest"):
            self.read(body)
            return
        error = expected_error(call)
        inside = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr | ast.Assign) else None
        if error is None or not isinstance(inside, ast.Call):
            raise unreadable(call)
        self._add_raise(self.replaced(inside), error)

    def _read_call(self, call: ast.Call) -> None:
        function = self._file.functions.get(_name(call.func))
        test = assert_of_unittest(call)
        error = expected_error(call) if test is None else None
        if test is not None:
            self._add(self.replaced(test))
        elif error is not None and len(call.args) > 1:
            inside = ast.Call(func=call.args[1], args=call.args[2:], keywords=call.keywords)
            self._add_raise(self.replaced(inside), error)
        elif function is not None:
            self.call(function, call)
        elif ast.unparse(call.func).startswith("self."):
            raise unreadable(call)  # a method of unittest that is not known here
        else:
            self._promote(names_in(call))
            effect = self.replaced(call)
            if not self._is_programs(effect):
                raise unreadable(call)
            self._tell(ast.Expr(value=effect))

    def call(self, function: ast.FunctionDef, call: ast.Call) -> ast.expr | None:
        """Read the body of a helper function with its arguments, and return the expression that the function returns.

        Raises:
            ValueError: If the function cannot be written out.
        """
        given = self._arguments(function, call)
        if self._depth >= _MAX_DEPTH:
            raise unreadable(call)
        outer, self.names = self.names, {**self.names, **given}
        self._depth += 1
        self._file.count(statements=1)
        *body, last = function.body
        is_result = isinstance(last, ast.Return) or (isinstance(last, ast.Expr) and isinstance(last.value, ast.Yield))
        self.read(body if is_result else function.body)
        value = last.value.value if isinstance(last, ast.Expr) and isinstance(last.value, ast.Yield) else None
        value = last.value if isinstance(last, ast.Return) else value
        found = None if value is None else self.replaced(value)
        self._depth -= 1
        self.names = outer
        return found

    def _arguments(self, function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
        parameters = [*function.args.posonlyargs, *function.args.args]
        names = [each.arg for each in parameters]
        defaults = dict(zip(names[len(names) - len(function.args.defaults) :], function.args.defaults, strict=True))
        defaults |= {
            each.arg: value
            for each, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            if value is not None
        }
        keywords = {each.arg: each.value for each in call.keywords if each.arg is not None}
        known = {*names, *(each.arg for each in function.args.kwonlyargs)}
        given = {**defaults, **dict(zip(names, call.args, strict=False)), **keywords}
        is_starred = len(keywords) < len(call.keywords) or any(isinstance(each, ast.Starred) for each in call.args)
        is_open = function.args.vararg or function.args.kwarg or function.decorator_list
        if is_starred or is_open or given.keys() != known or len(call.args) > len(names):
            raise unreadable(call)
        return {name: self.replaced(value) for name, value in given.items()}

    def use_fixture(self, name: str) -> ast.expr:
        """Read the body of a fixture and of those that it uses, and return the expression for its value.

        Raises:
            ValueError: If there is no such fixture, or it cannot be written out.
        """
        function = self._file.fixtures.get(name)
        if function is None:
            raise ValueError(f"the tests need the fixture {name}, which is not defined; write asserts")
        if self._depth >= _MAX_DEPTH:
            raise unreadable(function)
        self._depth += 1
        arguments = [self.use_fixture(each.arg) for each in function.args.args]
        bare = ast.FunctionDef(**{**vars(function), "decorator_list": []})
        value = self.call(bare, ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=arguments, keywords=[]))
        self._depth -= 1
        if value is None:
            raise unreadable(function)
        self._bind(ast.Name(id=name, ctx=ast.Store()), value)
        return self.names[name]

    def replaced(self, node: ast.expr) -> ast.expr:
        """The expression, with names replaced by their values and helper functions written out.

        Raises:
            ValueError: If a helper function cannot be written out.
        """
        changed: ast.expr = _Replacer(self, self._file).visit(copy.deepcopy(node))
        return changed

    def _promote(self, names: set[str]) -> None:
        """Turn lists, dictionaries and sets that a call may change into variables of the sandbox."""
        for name in sorted(names & self.names.keys()):
            value = self.names[name]
            if isinstance(value, ast.List | ast.Dict | ast.Set):
                fresh = ast.Name(id=self._file.new_name(name), ctx=ast.Load())
                self.variables.add(fresh.id)
                self.names[name] = fresh
                self._tell(ast.Assign(targets=[fresh], value=value))

    def _given(self, node: ast.AST) -> set[str]:
        """Names that are passed to the program's functions, which may change their values."""
        if isinstance(node, ast.Call) and self._is_programs(node):
            return {
                each.id for each in (*node.args, *(arg.value for arg in node.keywords)) if isinstance(each, ast.Name)
            }
        return {name for each in ast.iter_child_nodes(node) for name in self._given(each)}

    def _is_programs(self, value: ast.expr) -> bool:
        """Whether it is a call of the program or an attribute of a variable, not a function outside the sandbox."""
        if isinstance(value, ast.Attribute):
            return bool(names_in(value) & self.variables)
        function = value.func if isinstance(value, ast.Call) else None
        if isinstance(function, ast.Name) and function.id not in self.variables | {self._file.entry_point}:
            return function.id not in FUNCTIONS and function.id not in dir(builtins)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.attr not in MODULES.get(function.value.id, {})
        return function is not None and not is_constant(function)

    def _tell(self, statement: ast.stmt) -> None:
        text, names = ast.unparse(ast.fix_missing_locations(statement)), frozenset(names_in(statement))
        self.story.append(Told(statement, text, names & self.variables, names))

    def _add(self, test: ast.expr) -> None:
        if isinstance(test, ast.Constant) and test.value is True:
            return  # HumanEval's tests have such asserts
        self._add_behind_story(ast.Assert(test=test, msg=None))
        self._tell_changes(test)

    def _add_raise(self, call: ast.expr, error: Sequence[ast.expr]) -> None:
        """Add an expected error: its kind and, if there is one, the pattern of its text."""
        kind, *pattern = error
        keywords = [ast.keyword(arg="match", value=each) for each in pattern]
        test = ast.Call(func=ast.Name(id="raises", ctx=ast.Load()), args=[call, self.replaced(kind)], keywords=keywords)
        self._add_behind_story(ast.Assert(test=test, msg=None))
        self._tell_changes(call)

    def _tell_changes(self, asserted: ast.expr) -> None:
        """Repeat the calls of an assert before later asserts.

        Every call stands in a `try`, so that the program cannot see which calls are expected to raise.
        """
        for change in self._changes(asserted):
            handler = ast.ExceptHandler(type=ast.Name(id="Exception", ctx=ast.Load()), body=[ast.Pass()])
            self._tell(ast.Try(body=[ast.Expr(value=change)], handlers=[handler], orelse=[], finalbody=[]))

    def _add_behind_story(self, statement: ast.Assert) -> None:
        if len(self._file.asserts) == MAX_ASSERTS:
            raise ValueError(f"the tests hold more than {MAX_ASSERTS} asserts")
        before = self._needed(names_in(statement))
        self._used.update(before)
        names = set[str]().union(*map(names_in, self._calls(statement.test)), *(each.names for each in before))
        imports = dict.fromkeys(text for name, text in self._file.imports.items() if name in names)
        lines = [*imports, *(each.text for each in before)]
        self._file.count(statements=len(lines))
        self._file.asserts.append("\n".join([*lines, ast.unparse(ast.fix_missing_locations(statement))]))

    def _needed(self, names: set[str]) -> list[Told]:
        """Statements of the story that the names depend on, and those that use no variable."""
        needed: set[str] = names & self.variables
        num_known = -1
        while len(needed) > num_known:
            num_known = len(needed)
            needed.update(*(each.variables for each in self.story if not needed.isdisjoint(each.variables)))
        return [each for each in self.story if not each.variables or not needed.isdisjoint(each.variables)]

    def _changes(self, node: ast.expr) -> list[ast.expr]:
        """The outermost calls of the program that use a variable, and so may change its value."""
        return [call for call in self._calls(node) if names_in(call) & self.variables]

    def _calls(self, node: ast.expr) -> list[ast.expr]:
        """The outermost calls of the program's functions."""
        if isinstance(node, ast.Call) and self._is_programs(node):
            return [node]
        inside = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        return [call for each in inside for call in self._calls(each)]


class _Replacer(ast.NodeTransformer):
    """Replaces names and calls of helper functions by expressions, and `solution.f` by `f`."""

    def __init__(self, body: TestBody, file: TestFile) -> None:
        self._body = body
        self._file = file

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._body.names:
            return node
        value = self._body.names[node.id]
        self._file.count(nodes=sum(1 for _ in ast.walk(value)))
        return copy.deepcopy(value)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = self._file.functions.get(_name(node.func))
        if function is None:
            self.generic_visit(node)
            return node
        value = self._body.call(function, node)
        if value is None:
            raise unreadable(node)
        return value

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_module = isinstance(node.value, ast.Name) and node.value.id == "solution"
        if is_module and "solution" not in self._body.names:
            return ast.Name(id=node.attr, ctx=ast.Load())
        self.generic_visit(node)
        return node


def _loaded(statement: ast.stmt) -> list[str]:
    """Names that a statement reads, once per use; uses in a loop count twice, except of the loop's own variables."""
    names = [each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    if not isinstance(statement, ast.For):
        return names
    return names + [name for name in names if name not in names_in(statement.target)]


def is_docstring(statement: ast.stmt) -> bool:
    """Whether a statement is only a text or another constant, without any effect."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_message(statement: ast.stmt) -> bool:
    """Whether a statement only prints constants."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _name(call.func) == "print" and all(map(is_constant, call.args))


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""
