"""Rewriting a graph by rules: small functions from a call to what replaces it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from tunefarm.compiler.ops import call

Uses: TypeAlias = Mapping[Expr, int]
"""How often each expression is used; one that is not listed is used once."""

Rule: TypeAlias = Callable[[Call, Uses], Expr | None]
"""What replaces a call whose operands are already rewritten; None: the rule does not apply."""

_FIRINGS_PER_NODE = 50
_ROUNDS = 10


def count_uses(root: Expr) -> dict[Expr, int]:
    """How many operands refer to each expression; the root itself counts as used once."""
    uses = {root: 1}
    for node in post_order(root):
        for child in children(node):
            uses[child] = uses.get(child, 0) + 1
    return uses


def users_of(root: Expr) -> dict[Expr, list[Expr]]:
    """Who reads each expression; the result itself is read by an expression that is no call."""
    users: dict[Expr, list[Expr]] = {}
    for node in post_order(root):
        for child in dict.fromkeys(children(node)):
            users.setdefault(child, []).append(node)
    users.setdefault(root, []).append(Tuple((root,)))
    return users


def rewrite_main(module: IRModule, rules: Sequence[Rule]) -> IRModule:
    """Apply ``rules`` to ``main`` until none applies."""
    return module.with_body(rewrite(module.main.body, rules))


def rewrite(root: Expr, rules: Sequence[Rule]) -> Expr:
    """Apply ``rules`` everywhere below ``root`` until none applies; ``root`` itself if none did."""
    for _ in range(_ROUNDS):
        rewritten = _Round(rules, count_uses(root)).run(root)
        if rewritten is root:
            break
        root = rewritten
    return root


class _Round:
    """One walk from the operands up; what a rule makes is rewritten in turn."""

    def __init__(self, rules: Sequence[Rule], uses: dict[Expr, int]) -> None:
        self.rules = rules
        self.uses = uses
        self.result: dict[Expr, Expr] = {}
        self.replaced: dict[Expr, Expr] = {}
        self.firings = 0
        self.limit = _FIRINGS_PER_NODE * (len(uses) + 10)

    def run(self, root: Expr) -> Expr:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.result:
                stack.pop()
                continue
            waiting = [c for c in self._needed(node) if c not in self.result]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            self._settle(node)
        return self.result[root]

    def _needed(self, node: Expr) -> tuple[Expr, ...]:
        replacement = self.replaced.get(node)
        return children(node) if replacement is None else (replacement,)

    def _settle(self, node: Expr) -> None:
        """Find the node's result, or what must be rewritten before it is known."""
        if node in self.replaced:
            self.result[node] = self.result[self.replaced[node]]
            return
        rebuilt = with_children(node, [self.result[c] for c in children(node)])
        if rebuilt is not node:
            self._pass_uses(node, rebuilt)
        made = self._apply(rebuilt)
        if made is None:
            self.result[node] = self.result[rebuilt] = rebuilt
            return
        self._pass_uses(rebuilt, made)
        self.replaced[node] = made
        if rebuilt is not node:
            self.replaced[rebuilt] = made

    def _pass_uses(self, old: Expr, new: Expr) -> None:
        self.uses[new] = self.uses.get(new, 0) + self.uses.get(old, 1)

    def _apply(self, node: Expr) -> Expr | None:
        if not isinstance(node, Call):
            return None
        for rule in self.rules:
            made = rule(node, self.uses)
            if made is not None and made is not node:
                self.firings += 1
                if self.firings > self.limit:
                    raise RuntimeError(f"rewriting does not end; the last rule is {rule}")
                return made
        return None


def with_children(node: Expr, operands: Sequence[Expr]) -> Expr:
    """The node over other operands, its type inferred again; the same node if they are the same."""
    old = children(node)
    if all(a is b for a, b in zip(old, operands, strict=True)):
        return node
    match node:
        case Call():
            return with_args(node, operands)
        case Tuple():
            return Tuple(tuple(operands))
        case TupleGetItem():
            return TupleGetItem(operands[0], node.index)
        case Var() | Constant():
            return node


def with_args(node: Call, args: Sequence[Expr]) -> Call:
    """The call of the same operator on other operands."""
    if isinstance(node.op, Function) or all(
        a.type == b.type for a, b in zip(node.args, args, strict=True)
    ):
        return Call(node.op, tuple(args), node.attrs, node.type, node.name)
    return call(node.op, *args, name=node.name, **node.attrs)


def is_float32(expr: Expr) -> bool:
    """Whether the expression is one tensor of float32."""
    return isinstance(expr.type, TensorType) and expr.type.dtype == "float32"


def is_call(expr: Expr, *ops: str) -> bool:
    """Whether the expression calls one of these operators."""
    return isinstance(expr, Call) and expr.op in ops
