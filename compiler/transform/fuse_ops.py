"""Group operators into fused functions, each one kernel; and take them apart again.

    relu(add(conv(x, w), b))  ->  f(x, w, b)    with f(p0, p1, p2) = relu(add(conv(p0, p1), p2))

What joins what, by pattern (after Relay's FuseOps, Roesch et al. 2018, whose dominator rule it
keeps: a producer joins its immediate post-dominator if every path between them can join):

    contraction, reduction  take the elementwise operators of the same shape that follow
    elementwise, injective  chains join, whatever their order; a reshape at an end stays a view
    reduction of sums       takes an elementwise producer that nobody else reads
    bytes made wider        join each of their readers, so that bytes lie between kernels
    convolutions            join around a depthwise one where ``join_convolutions`` says it pays
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
    AttrValue,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    Tuple,
    TupleType,
    Var,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import OPS, Pattern
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.context import option
from tunefarm.compiler.transform.join_convolutions import joined_convolutions
from tunefarm.compiler.transform.rewrite import with_children

_MAX_NODES = 32
_MAX_PARAMS = 24
_TAKES_PRODUCERS = ("sum", "mean", "max", "min", "prod")
_SIMPLE = (Pattern.ELEMENTWISE, Pattern.BROADCAST)
_CALIBRATED = ("quantize", "requantize", "dequantize", "add_quanta")


def fuse_ops(module: IRModule, target: Target) -> IRModule:
    """``main`` becomes calls of primitive functions only."""
    main = module.main
    root = _with_own_numbers(main.body)
    body = _outline(root, _Groups(root, target).members())
    return module.with_main(Function(main.params, body, main.attrs))


def defuse_ops(module: IRModule, target: Target) -> IRModule:
    """The inverse of ``fuse_ops``: calls of primitive functions become their bodies."""
    main = module.main
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        operands = [done[c] for c in children(node)]
        if isinstance(node, Call) and isinstance(node.op, Function):
            done[node] = _inlined(node.op, operands)
        else:
            done[node] = with_children(node, operands)
    return module.with_main(Function(main.params, done[main.body], main.attrs))


def _inlined(function: Function, operands: Sequence[Expr]) -> Expr:
    done: dict[Expr, Expr] = dict(zip(function.params, operands, strict=True))
    for node in post_order(function.body):
        if node not in done:
            done[node] = with_children(node, [done[c] for c in children(node)])
    return done[function.body]


def _pattern(node: Expr) -> Pattern:
    """The node's pattern; opaque for what is not a call with one tensor as its result."""
    if not isinstance(node, Call) or not isinstance(node.op, str):
        return Pattern.OPAQUE
    if isinstance(node.type, TupleType):
        return Pattern.OPAQUE
    return OPS[node.op].pattern


class _Groups:
    """Union-find over the calls of a graph; each group has one member whose value leaves it."""

    def __init__(self, root: Expr, target: Target) -> None:
        self.order = [n for n in post_order(root) if isinstance(n, Call)]
        self.place = {n: i for i, n in enumerate(self.order)}
        self.users = _users(root)
        self.group_of: dict[Expr, int] = {n: i for i, n in enumerate(self.order)}
        self.contents: dict[int, list[Call]] = {i: [n] for i, n in enumerate(self.order)}
        self.max_nodes = option("fuse_ops.max_nodes", _MAX_NODES)
        self._grow(lambda n: _pattern(n) is Pattern.OUT_FUSABLE, _SIMPLE)
        if option("fuse_ops.join_convolutions", 1):
            self._join_convolutions(target)
        self._grow(lambda n: _pattern(n) is Pattern.REDUCTION, _SIMPLE)
        self._grow(self._is_movable, (*_SIMPLE, Pattern.INJECTIVE))
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

    def _is_movable(self, node: Call) -> bool:
        return _pattern(node) in (*_SIMPLE, Pattern.INJECTIVE)

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
        if end is None:
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
        if not alone or _pattern(node) not in allowed:
            return False
        if Pattern.INJECTIVE in allowed:
            grows = tensor_type(node).size > 2 * tensor_type(last).size
            return not (grows or node.op == "concat" or _is_view_edge(last, node, self.users))
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
        return len({a for m in members for a in m.args if a not in inside and not _inline(a)})

    def _feed_reductions(self) -> None:
        """sum(multiply(x, x)): the elementwise producer joins the reduction that alone reads it."""
        for node in self.order:
            if node.op not in _TAKES_PRODUCERS:
                continue
            producer = node.args[0]
            if not isinstance(producer, Call) or set(self.users[producer]) != {node}:
                continue
            feeding = self.contents[self.group_of[producer]]
            if all(_pattern(m) in _SIMPLE for m in feeding):
                members = [*feeding, *self.contents[self.group_of[node]]]
                if len(members) <= self.max_nodes and self._param_count(members) <= _MAX_PARAMS:
                    self._merge(self.group_of[node], producer)

    def _feed_numbers(self) -> None:
        """add(conv(x, w), dequantize(q)): bytes become numbers where they are read."""
        for node in self.order:
            reader = _only(self.users.get(node, ()))
            if not _is_of_bytes(node) or not isinstance(reader, Call):
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


def _is_of_bytes(node: Expr) -> bool:
    return (
        isinstance(node, Call)
        and node.op in ("dequantize", "cast")
        and tensor_type(node.args[0]).dtype in ("int8", "uint8")
    )


def _reads_in_place(reader: Expr, node: Expr) -> bool:
    """Whether the reader takes each element of ``node`` in its own kernel, a few times at most."""
    if isinstance(reader, Call) and reader.op in (*_TAKES_PRODUCERS, "avg_pool"):
        return True
    return _pattern(reader) in _SIMPLE and tensor_type(reader).shape == tensor_type(node).shape


def _copied(node: Expr) -> Expr:
    if isinstance(node, Constant):
        return Constant(node.data, node.name)
    assert isinstance(node, Call)
    args = [_copied(a) if _inline(a) else a for a in node.args]
    return Call(node.op, tuple(args), node.attrs, node.type, node.name)


def _with_own_numbers(root: Expr) -> Expr:
    """The graph in which every reader that could take a ``dequantize`` of bytes has its own.

    Scales and zero points are no others' either: equal groups are equal whichever of them agree.
    """
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        operands = [done[c] for c in children(node)]
        calibrated = isinstance(node, Call) and node.op in _CALIBRATED
        for i, operand in enumerate(operands):
            read_here = _is_of_bytes(operand) and _reads_in_place(node, operand)
            if read_here or (calibrated and _inline(operand)):
                operands[i] = _copied(operand)
        done[node] = with_children(node, operands)
    return done[root]


def _users(root: Expr) -> dict[Expr, list[Expr]]:
    """Who reads each expression; the result itself is read by an expression that is no call."""
    users: dict[Expr, list[Expr]] = {}
    for node in post_order(root):
        for child in dict.fromkeys(children(node)):
            users.setdefault(child, []).append(node)
    users.setdefault(root, []).append(Tuple((root,)))
    return users


def _is_view_edge(last: Call, node: Call, users: Mapping[Expr, Sequence[Expr]]) -> bool:
    """Whether joining would spoil a view: a reshape is free as long as it stands by itself."""
    return last.op == "reshape" or (node.op == "reshape" and _reads_no_chain(node, users))


def _reads_no_chain(node: Call, users: Mapping[Expr, Sequence[Expr]]) -> bool:
    """Whether no single elementwise or injective call follows the reshape."""
    followers = users.get(node, ())
    if len(followers) != 1 or not isinstance(followers[0], Call):
        return True
    return _pattern(followers[0]) not in (*_SIMPLE, Pattern.INJECTIVE)


def _inline(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.data.size == 1


def _outline(root: Expr, groups: Sequence[Sequence[Call]]) -> Expr:
    """The graph with each group replaced by a call of its function."""
    group_of: dict[Expr, Sequence[Call]] = {n: members for members in groups for n in members}
    functions: dict[str, Function] = {}
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        members = group_of.get(node)
        if members is None or _is_fused(node):
            done[node] = with_children(node, [done[c] for c in children(node)])
        elif node is members[-1]:
            function, operands = function_of(members)
            function = interned(function, functions)
            name = next((m.name for m in members if m.name), "")
            args = tuple(done[o] for o in operands)
            done[node] = Call(function, args, {}, node.type, name)
        else:
            done[node] = node
    return done[root]


def _is_fused(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Function)


def function_of(members: Sequence[Call]) -> tuple[Function, list[Expr]]:
    """The fused function and the expressions that are its operands, in parameter order."""
    body = members[-1]
    inside = set(members)
    done: dict[Expr, Expr] = {}
    operands: list[Expr] = []
    params: list[Var] = []
    for node in _group_order(body, inside):
        if node in inside:
            assert isinstance(node, Call)
            done[node] = _ordered(node, done, inside)
        elif _inline(node) and _reads_elementwise(node, members):
            done[node] = node
        else:
            param = Var(f"p{len(params)}", tensor_type(node))
            done[node] = param
            operands.append(node)
            params.append(param)
    constants = tuple(i for i, o in enumerate(operands) if isinstance(o, Constant))
    attrs: dict[str, AttrValue] = {
        "primitive": True,
        "constants": constants,
        "name": "_".join(str(m.op) for m in members)[:80],
    }
    if all(m.op == "reshape" for m in members):
        attrs["view"] = True
    return Function(tuple(params), done[body], attrs), operands


def _group_order(body: Call, inside: set[Call]) -> list[Expr]:
    """Members and operands, each after what it reads; the walk stops at the group's edge."""
    order: list[Expr] = []
    done: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(body, False)]
    while stack:
        node, expanded = stack.pop()
        if node in done:
            continue
        if expanded or node not in inside:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        assert isinstance(node, Call)
        stack.extend((a, False) for a in reversed(_operand_order(node, inside)))
    return order


def _operand_order(node: Call, inside: set[Call]) -> tuple[Expr, ...]:
    """Operands of a commutative operator: members first, then variables, then constants."""
    if not isinstance(node.op, str) or not OPS[node.op].commutative:
        return node.args
    return tuple(sorted(node.args, key=lambda a: (a not in inside) + isinstance(a, Constant)))


def _ordered(node: Call, done: Mapping[Expr, Expr], inside: set[Call]) -> Call:
    args = tuple(done[a] for a in _operand_order(node, inside))
    return Call(node.op, args, node.attrs, node.type)


def _reads_elementwise(scalar: Expr, members: Sequence[Call]) -> bool:
    """Whether only elementwise operators read the constant, so that its value may stay inside."""
    readers = [m for m in members if scalar in m.args]
    return all(_pattern(m) in _SIMPLE and m.op not in _CALIBRATED for m in readers)


def interned(function: Function, functions: dict[str, Function]) -> Function:
    """The function of an equal group met before, or this one."""
    from tunefarm.compiler.workload import Workload

    try:
        text = Workload.from_function(function).text
    except ValueError:
        return function
    return functions.setdefault(text, function)
