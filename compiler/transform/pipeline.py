"""The passes of a build, in order."""

from __future__ import annotations

from tunefarm.compiler.ir import IRModule
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.canonicalize_ops import canonicalize_ops
from tunefarm.compiler.transform.combine_parallel import combine_parallel, join_projections
from tunefarm.compiler.transform.context import Pass, PassContext
from tunefarm.compiler.transform.convert_layout import convert_layout
from tunefarm.compiler.transform.convolve_in_float32 import convolve_in_float32
from tunefarm.compiler.transform.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tunefarm.compiler.transform.eliminate_dead_code import eliminate_dead_code
from tunefarm.compiler.transform.flush_denormals import flush_denormals
from tunefarm.compiler.transform.fold_constants import fold_constants
from tunefarm.compiler.transform.fold_scale_axis import fold_scale_axis
from tunefarm.compiler.transform.fuse_attention import fuse_attention
from tunefarm.compiler.transform.fuse_ops import fuse_ops
from tunefarm.compiler.transform.infer_types import infer_types
from tunefarm.compiler.transform.legalize import legalize
from tunefarm.compiler.transform.lower_precision import lower_precision
from tunefarm.compiler.transform.lower_quantized import lower_quantized
from tunefarm.compiler.transform.mask_of_grids import mask_of_grids
from tunefarm.compiler.transform.merge_branches import merge_branches
from tunefarm.compiler.transform.pack_pixels import pack_pixels
from tunefarm.compiler.transform.pack_weights import pack_weights, plain_weights
from tunefarm.compiler.transform.pixels_in_words import pixels_in_words
from tunefarm.compiler.transform.place_planes import place_planes
from tunefarm.compiler.transform.recognize_functions import recognize_functions
from tunefarm.compiler.transform.recognize_rows import recognize_rows
from tunefarm.compiler.transform.simplify_inference import simplify_inference
from tunefarm.compiler.transform.split_columns import split_columns
from tunefarm.compiler.transform.split_inputs import split_inputs
from tunefarm.compiler.transform.sum_single_rows import sum_single_rows
from tunefarm.compiler.transform.unfold_patches import unfold_patches
from tunefarm.compiler.transform.unfold_windows import unfold_windows
from tunefarm.compiler.transform.widen_floats import widen_floats

STEPS = (
    Pass("infer_types", infer_types, level=0),
    Pass("widen_floats", widen_floats, level=1),
    Pass("simplify_inference", simplify_inference, level=0),
    Pass("lower_quantized", lower_quantized, level=1),
    Pass("pack_weights", pack_weights, level=2),
    Pass("plain_weights", plain_weights, level=0),
    Pass("fold_constants", fold_constants, level=1),
    Pass("canonicalize_ops", canonicalize_ops, level=1),
    Pass("recognize_functions", recognize_functions, level=1),
    Pass("merge_branches", merge_branches, level=2),
    Pass("fold_scale_axis", fold_scale_axis, level=2),
    Pass("convert_layout", convert_layout, level=1),
    Pass("eliminate_common_subexpressions_first", eliminate_common_subexpressions, level=1),
    Pass("recognize_rows", recognize_rows, level=1),
    Pass("legalize", legalize, level=0),
    Pass("fold_constants_again", fold_constants, level=1),
    Pass("eliminate_common_subexpressions", eliminate_common_subexpressions, level=1),
    Pass("combine_parallel", combine_parallel, level=4),
    Pass("join_projections", join_projections, level=2),
    Pass("unfold_patches", unfold_patches, level=2),
    Pass("pixels_in_words", pixels_in_words, level=2),
    Pass("lower_precision", lower_precision, level=0),
    Pass("unfold_windows", unfold_windows, level=2),
    Pass("convolve_in_float32", convolve_in_float32, level=2),
    Pass("split_inputs", split_inputs, level=2),
    Pass("pack_pixels", pack_pixels, level=2),
    Pass("eliminate_dead_code", eliminate_dead_code, level=1),
    Pass("flush_denormals", flush_denormals, level=2),
    Pass("mask_of_grids", mask_of_grids, level=2),
    Pass("fuse_attention", fuse_attention, level=2),
    Pass("sum_single_rows", sum_single_rows, level=2),
    Pass("place_planes", place_planes, level=2),
    Pass("fuse_ops", fuse_ops, level=0),
    Pass("split_columns", split_columns, level=2),
    Pass("check_types", infer_types, level=3),
)


def optimize(module: IRModule, target: Target) -> IRModule:
    """The module for a target: ``main`` calls primitive functions only, each one kernel.

    The passes are those of ``STEPS`` that ``PassContext.current()`` lets run. A pass of level 4
    runs only if it is required.
    """
    context = PassContext.current()
    context.check_names(frozenset(step.name for step in STEPS))
    for step in STEPS:
        module = context.run(step, module, target)
    return module
