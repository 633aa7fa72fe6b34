"""What the default config of a product takes, by the models of the sketches."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import narrow
from tunefarm.compiler.space.contraction.default import config_cycles
from tunefarm.compiler.space.contraction.shape import contraction_of, lanes_of
from tunefarm.compiler.space.deep.default import cycles as deep_cycles
from tunefarm.compiler.space.deep.shape import deep_product_of
from tunefarm.compiler.space.depthwise_winograd.knobs import work_cycles as depthwise_cycles
from tunefarm.compiler.space.depthwise_winograd.program import depthwise_of
from tunefarm.compiler.space.image_rows_winograd.knobs import work_cycles as image_rows_cycles
from tunefarm.compiler.space.image_rows_winograd.program import rows_of
from tunefarm.compiler.space.last_columns.default import cycles as last_columns_cycles
from tunefarm.compiler.space.last_columns.program import product_of as product_apart_of
from tunefarm.compiler.space.registry import config_space
from tunefarm.compiler.space.strassen.default import cycles as strassen_cycles
from tunefarm.compiler.space.strassen.forms import LEVELS
from tunefarm.compiler.space.strassen.program import product_of
from tunefarm.compiler.space.winograd.convolution import convolution_of
from tunefarm.compiler.space.winograd.default import cycles as winograd_cycles
from tunefarm.compiler.space.winograd_1d.convolution import row_convolution_of
from tunefarm.compiler.space.winograd_1d.default import cycles as winograd_1d_cycles
from tunefarm.compiler.space.winograd_online.default import cycles as winograd_online_cycles
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

WINOGRAD = {
    "winograd": winograd_cycles,
    "winograd_online": winograd_online_cycles,
}


def cycles_on_one_core(
    function: Function, target: Target, sketches: Collection[str] = ()
) -> float | None:
    """Cycles of a fused product under its default config; None where no model knows them, or where
    that is of none of the ``sketches``, if some are given."""
    options = {**target.options, "num-cores": "1"}
    one = Target(" ".join([target.kind, *(f"-{k}={v}" for k, v in options.items())]))
    config = config_space(Workload.from_function(function), one).default
    if sketches and config["sketch"] not in sketches:
        return None
    k = {name: np.array([value]) for name, value in config.items() if name != "sketch"}
    match config["sketch"]:
        case "narrow":
            c = narrow.narrow_of(function, one.lanes("float32"))
            assert c is not None
            return float(narrow.cycles(c, one, k)[0])
        case "last_columns":
            apart = product_apart_of(function, one.lanes("float32"))
            assert apart is not None
            return float(last_columns_cycles(apart, one, k)[0])
        case "contraction":
            c = contraction_of(function)
            assert c is not None
            return config_cycles(c, one, lanes_of(c, one), config)
        case "deep":
            c = deep_product_of(function, one)
            assert c is not None
            return float(deep_cycles(c, one, k)[0])
        case "depthwise_winograd":
            d = depthwise_of(function)
            assert d is not None
            return float(depthwise_cycles(d, one, one.lanes("float32"), k)[0])
        case "image_rows_winograd":
            d = rows_of(function)
            assert d is not None
            return float(image_rows_cycles(d, one.lanes("float32"), k)[0])
        case "strassen" | "strassen_2":
            p = product_of(function, one.lanes("float32"), LEVELS[str(config["sketch"])])
            assert p is not None
            return float(strassen_cycles(p, one, k)[0])
        case "winograd_1d":
            row_conv = row_convolution_of(function)
            assert row_conv is not None
            return float(winograd_1d_cycles(row_conv, one, one.lanes("float32"), k)[0])
        case str(name) if name in WINOGRAD:
            conv = convolution_of(function, every=True)
            assert conv is not None
            return float(WINOGRAD[name](conv, one, one.lanes("float32"), k)[0])
        case _:
            return None
