"""Group operators into fused functions, each one kernel.

    relu(add(conv(x, w), b))  ->  f(x, w, b)    with f(p0, p1, p2) = relu(add(conv(p0, p1), p2))

What joins what, by pattern (after Relay's FuseOps, Roesch et al. 2018, whose dominator rule it
keeps: a producer joins its immediate post-dominator if every path between them can join):

    contraction, reduction  take the elementwise operators of the same shape that follow
    elementwise, injective  chains join, whatever their order, up to a reshape, which stays a view
    reduction of sums       takes an elementwise producer that nobody else reads
    numbers made wider      join each of their readers, so that narrow ones lie between kernels
    convolutions            join around a depthwise one where ``join_convolutions`` says it pays
    a maximum over windows  joins the convolution that it alone reads where ``join_pooling`` does
    opaque, several results stand alone
    what an earlier pass fused stays as it is

A fused function has ``attrs["primitive"] = True``, ``attrs["constants"]`` (indices of parameters
that are constants of the model), ``attrs["name"]``, and ``attrs["view"] = True`` if it only
reshapes. Constants of one element stay inside, but for scales and zero points, which another
calibration changes; others become parameters. Equal groups share one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    IRModule,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import Pattern
from tunefarm.compiler.space.inverted_residual import is_depthwise
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.context import option
from tunefarm.compiler.transform.join_convolutions import joined_convolutions
from tunefarm.compiler.transform.join_pooling import joined_pooling
from tunefarm.compiler.transform.outline import (
    CALIBRATED,
    SIMPLE,
    function_of,
    outline,
    pattern_of,
    stays_inside,
)
from tunefarm.compiler.transform.rewrite import is_call, users_of, with_children

_MAX_NODES = 32
_MAX_PARAMS = 24
_TAKES_PRODUCERS = ("sum", "mean", "max", "min", "prod")
_NARROW = ("int8", "uint8", "float16", "bfloat16")


def fuse_ops(module: IRModule, target: Target) -> IRModule:
    """``main`` becomes calls of primitive functions only."""
    main = module.main
    root = _with_own_numbers(main.body)
    body = outline(root, _Groups(root, target).members())
    return module.with_body(body)


class _Groups:
    """Union-find over the calls of a graph; each group has one member whose value leaves it."""

    def __init__(self, root: Expr, target: Target) -> None:
        self.order = [n for n in post_order(root) if isinstance(n, Call)]
        self.place = {n: i for i, n in enumerate(self.order)}
        self.users = users_of(root)
        self.group_of: dict[Expr, int] = {n: i for i, n in enumerate(self.order)}
        self.contents: dict[int, list[Call]] = {i: [n] for i, n in enumerate(self.order)}
        self.max_nodes = option("fuse_ops.max_nodes", _MAX_NODES)
        self._grow(lambda n: pattern_of(n) is Pattern.OUT_FUSABLE, SIMPLE)
        if option("fuse_ops.join_convolutions", 1):
            self._join_convolutions(target)
        if option("fuse_ops.join_pooling", 1):
            self._join_pooling(target)
        self._grow(lambda n: pattern_of(n) is Pattern.REDUCTION, SIMPLE)
        self._grow(self._is_movable, (*SIMPLE, Pattern.INJECTIVE))
        self._feed_reductions()
        self._feed_numbers()

    def members(self) -> list[list[Call]]:
        """Each group's calls in graph order; the last one's value leaves the group."""
        return [sorted(g, key=lambda n: self.place[n]) for g in self.contents.values()]

    def _join_convolutions(self, target: Target) -> None:
        for chain in joined_convolutions(
            self.members(), self.users, lambda group: function_of(group)[0], target
        ):
            members = [m for g in chain for m in g]
            if len(members) <= self.max_nodes and self._param_count(members) <= _MAX_PARAMS:
                for last in chain[:-1]:
                    self._merge(self.group_of[chain[-1][-1]], last[-1])

    def _join_pooling(self, target: Target) -> None:
        for producer, pool in joined_pooling(
            self.members(), self.users, lambda group: function_of(group)[0], target
        ):
            if len(self.contents[self.group_of[producer]]) < self.max_nodes:
                self._merge(self.group_of[pool], producer)

    def _is_movable(self, node: Call) -> bool:
        return pattern_of(node) in (*SIMPLE, Pattern.INJECTIVE)

    def _grow(self, is_seed: Callable[[Call], bool], allowed: Sequence[Pattern]) -> None:
        """Extend each group that holds a seed from its last member, as far as it goes."""
        for node in self.order:
            if is_seed(node) and len(self.contents[self.group_of[node]]) == 1:
                last: Call | None = node
                while last is not None:
                    last = self._extend(last, allowed)

    def _extend(self, last: Call, allowed: Sequence[Pattern]) -> Call | None:
        """Take in everything from ``last`` to its post-dominator; the new last member, or None."""
        end = self._post_dominator(last)
        if end is None or "reshape" in (last.op, end.op):  # a view as long as it stands by itself
            return None
        between = self._between(last, end)
        group = self.group_of[last]
        merged = len(self.contents[group]) + len(between)
        if merged > self.max_nodes or not all(self._may_join(last, n, allowed) for n in between):
            return None
        if self._param_count([*self.contents[group], *between]) > _MAX_PARAMS:
            return None
        for node in between:
            self._merge(group, node)
        return end

    def _may_join(self, last: Call, node: Call, allowed: Sequence[Pattern]) -> bool:
        alone = len(self.contents[self.group_of[node]]) == 1
        if not alone or pattern_of(node) not in allowed:
            return False
        if Pattern.INJECTIVE in allowed:
            grows = tensor_type(node).size > 2 * tensor_type(last).size
            spoils_view = node.op == "reshape" and _reads_no_chain(node, self.users)
            return not (grows or node.op == "concat" or spoils_view)
        return tensor_type(node).shape == tensor_type(last).shape

    def _merge(self, group: int, node: Call) -> None:
        old = self.group_of[node]
        for member in self.contents.pop(old):
            self.group_of[member] = group
            self.contents[group].append(member)

    def _post_dominator(self, node: Call) -> Call | None:
        """The first call that every path from ``node`` to the results passes, if there is one.

        Users are merged in the graph's order until one is left: it is where all paths meet.
        """
        frontier = set(self.users.get(node, ()))
        for _ in range(self.max_nodes):
            if any(not isinstance(n, Call) for n in frontier) or not frontier:
                return None
            first = min((n for n in frontier if isinstance(n, Call)), key=self.place.__getitem__)
            if len(frontier) == 1:
                return first if isinstance(first, Call) else None
            frontier.remove(first)
            followers = self.users.get(first, ())
            if not followers:
                return None
            frontier.update(followers)
        return None

    def _between(self, start: Call, end: Call) -> list[Call]:
        """The calls on paths from ``start`` to ``end``, the end included, in graph order."""
        found: set[Expr] = {end}
        todo: list[Expr] = list(self.users[start])
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo.extend(self.users.get(node, ()))
        calls = [n for n in found if isinstance(n, Call)]
        return sorted(calls, key=lambda n: self.place[n])

    def _param_count(self, members: Sequence[Call]) -> int:
        inside = set(members)
        return len({a for m in members for a in m.args if a not in inside and not stays_inside(a)})

    def _feed_reductions(self) -> None:
        """sum(multiply(x, x)): the elementwise producer joins the reduction that alone reads it."""
        for node in self.order:
            if node.op not in _TAKES_PRODUCERS:
                continue
            producer = node.args[0]
            if not isinstance(producer, Call) or set(self.users[producer]) != {node}:
                continue
            feeding = self.contents[self.group_of[producer]]
            if all(pattern_of(m) in SIMPLE for m in feeding):
                members = [*feeding, *self.contents[self.group_of[node]]]
                if len(members) <= self.max_nodes and self._param_count(members) <= _MAX_PARAMS:
                    self._merge(self.group_of[node], producer)

    def _feed_numbers(self) -> None:
        """add(conv(x, w), dequantize(q)): bytes become numbers where they are read."""
        for node in self.order:
            reader = _only(self.users.get(node, ()))
            if not _is_of_few_bytes(node) or not isinstance(reader, Call):
                continue
            old, new = self.group_of[node], self.group_of[reader]
            if old == new or not _reads_in_place(reader, node):
                continue
            members = [*self.contents[new], node]
            if len(members) > self.max_nodes or self._param_count(members) > _MAX_PARAMS:
                continue
            self.contents[old].remove(node)
            if not self.contents[old]:
                del self.contents[old]
            self.group_of[node] = new
            self.contents[new].append(node)


def _only(nodes: Sequence[Expr]) -> Expr | None:
    return nodes[0] if len(nodes) == 1 else None


def _is_of_few_bytes(node: Expr) -> bool:
    return (
        isinstance(node, Call)
        and node.op in ("dequantize", "cast")
        and tensor_type(node.args[0]).dtype in _NARROW
    )


def _reads_in_place(reader: Expr, node: Expr) -> bool:
    """Whether the reader takes each element of ``node`` in its own kernel, a few times at most."""
    if isinstance(reader, Call) and reader.op in (*_TAKES_PRODUCERS, "avg_pool"):
        return True
    if isinstance(reader, Call) and is_depthwise(reader):
        return reader.args[0] is node and is_call(node, "cast")
    return pattern_of(reader) in SIMPLE and tensor_type(reader).shape == tensor_type(node).shape


def _copied(node: Expr) -> Expr:
    if isinstance(node, Constant):
        return Constant(node.data, node.name)
    assert isinstance(node, Call)
    args = [_copied(a) if stays_inside(a) else a for a in node.args]
    return Call(node.op, tuple(args), node.attrs, node.type, node.name)


def _with_own_numbers(root: Expr) -> Expr:
    """The graph in which every reader that could take a ``dequantize`` of bytes has its own.

    Scales and zero points are no others' either: equal groups are equal whichever of them agree.
    """
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        operands = [done[c] for c in children(node)]
        calibrated = isinstance(node, Call) and node.op in CALIBRATED
        own: dict[Expr, Expr] = {}
        for i, operand in enumerate(operands):
            if _is_of_few_bytes(operand) and _reads_in_place(node, operand):
                operands[i] = own[operand] = own.get(operand) or _copied(operand)
            elif calibrated and stays_inside(operand):
                operands[i] = _copied(operand)
        done[node] = with_children(node, operands)
    return done[root]


def _reads_no_chain(node: Call, users: Mapping[Expr, Sequence[Expr]]) -> bool:
    """Whether no single elementwise or injective call follows the reshape."""
    followers = users.get(node, ())
    if len(followers) != 1 or not isinstance(followers[0], Call):
        return True
    return pattern_of(followers[0]) not in (*SIMPLE, Pattern.INJECTIVE)
