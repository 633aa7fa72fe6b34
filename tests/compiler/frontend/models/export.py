"""Make the .onnx files beside this script with PyTorch's exporter.

    python tests/compiler/frontend/models/export.py        # needs torch and onnxscript

The files are committed, so the tests need neither. Weights are small and seeded.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """Layer norm, linear, GELU, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class GroupedConv(nn.Module):
    """Grouped and depthwise convolution with batch norm, SiLU, Hardswish, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(6, 12, 3, stride=2, padding=1, groups=3)
        self.b = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=12)
        self.norm = nn.BatchNorm2d(12)
        self.norm.running_var = torch.rand(12) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.norm(self.b(F.silu(self.a(x)))))
        return F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2, 1), 1).flatten(1)


class WindowAttention(nn.Module):
    """Swin's shifted windows: pad, roll, partition, attention with a mask, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, -w % 4, 0, -h % 4))
        hp, wp = x.shape[1:3]
        x = torch.roll(x, (-2, -2), (1, 2))
        windows = x.reshape(n, hp // 4, 4, wp // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        q, k, v = self.qkv(windows).reshape(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(16, 16).tril().log()
        y = (q @ k.transpose(-1, -2) * 0.5 + mask).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(-1, 16, c))
        y = y.reshape(n, hp // 4, wp // 4, 4, 4, c).transpose(2, 3).reshape(n, hp, wp, c)
        return torch.roll(y, (2, 2), (1, 2))[:, :h, :w]


class MaskedAttention(nn.Module):
    """Scaled dot-product attention with a boolean mask made from lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mask = (torch.arange(t)[None, :] < length[:, None])[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).reshape(n, t, 16)


class CausalRotary(nn.Module):
    """RMS norm, rotary position embedding, causal attention, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16)
        self.qkv, self.gate, self.up = (nn.Linear(16, s, bias=False) for s in (48, 24, 24))
        self.down = nn.Linear(24, 16, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        t, d = x.shape[-2:]
        angle = torch.outer(torch.arange(t).float(), 100 ** (-torch.arange(0, d, 2).float() / d))
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(n, t, 16)
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Conv1d(nn.Module):
    """1-D convolutions as in speech models, group norm, transposed convolution, GLU."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(5, 12, 7, stride=3, padding=2)
        self.norm = nn.GroupNorm(3, 12)
        self.b = nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(F.glu(F.mish(self.norm(self.a(x))), 1)))


class Tokens(nn.Module):
    """Embeddings of tokens and positions, a class token, argmax over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 8), nn.Embedding(9, 8)
        self.start = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        n, t = tokens.shape
        x = torch.cat([self.start.expand(n, -1, -1), self.words(tokens)], 1)
        x = x + self.places(torch.arange(t + 1))
        scores = x @ self.words.weight.T
        return scores.argmax(-1), torch.cumsum(scores.softmax(-1).amax(-1), 1)


class Decoder(nn.Module):
    """Segmentation head: bilinear and nearest upsampling, instance norm, pixel shuffle, where."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(4, 8, 1), nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(self.norm(self.a(x)), size=(7, 9), mode="bilinear", align_corners=False)
        x = F.pixel_shuffle(F.interpolate(x, scale_factor=2, mode="nearest"), 2)
        return torch.where(x > 0.1, x, x.clamp(-1, 0).abs().sqrt())


class WrittenOut(nn.Module):
    """Norms, activations and a softmax in arithmetic, as many published models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(24))
        self.dense = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gelu(self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)))
        centred = x - x.mean(-1, keepdim=True)
        x = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        x = x + F.gelu(self.dense(x + self.shift), approximate="tanh")
        variance = x.var(-1, keepdim=True, unbiased=False)
        y = (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-5) * self.scale + self.shift
        y = y * torch.tanh(F.softplus(y)) + x / (1 + torch.exp(-x)) + x * F.relu6(x + 3) / 6
        powers = torch.exp(y - y.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True)

    def gelu(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3))))


MODELS: dict[str, tuple[type[nn.Module], tuple[Tensor, ...], int]] = {
    "mlp": (Mlp, (torch.randn(2, 5, 12),), 20),
    "grouped_conv": (GroupedConv, (torch.randn(2, 6, 13, 11),), 18),
    "window_attention": (WindowAttention, (torch.randn(1, 7, 6, 8),), 18),
    "masked_attention": (MaskedAttention, (torch.randn(2, 5, 16), torch.tensor([3, 5])), 18),
    "dynamic_attention": (MaskedAttention, (torch.randn(2, 5, 16), torch.tensor([3, 5])), 18),
    "causal_rotary": (CausalRotary, (torch.randn(1, 7, 16),), 20),
    "conv1d": (Conv1d, (torch.randn(2, 5, 23),), 19),
    "tokens": (Tokens, (torch.randint(0, 30, (2, 7)),), 19),
    "written_out": (WrittenOut, (torch.randn(2, 5, 24),), 20),
    "decoder": (Decoder, (torch.randn(1, 4, 5, 3),), 20),
}

DYNAMIC = {"dynamic_attention": {"x": {0: "batch", 1: "tokens"}, "length": {0: "batch"}}}


def main() -> None:
    warnings.simplefilter("ignore")
    here = Path(__file__).parent
    for name, (module, inputs, opset) in MODELS.items():
        torch.manual_seed(0)
        program = torch.onnx.export(
            module().eval(),
            inputs,
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=DYNAMIC.get(name),
            verbose=False,
        )
        assert program is not None
        program.model.doc_string = None
        for node in program.model.graph:
            node.metadata_props.clear()
            node.doc_string = None
        program.save(here / f"{name}.onnx", external_data=False)
        print(f"{name}.onnx: {(here / f'{name}.onnx').stat().st_size} bytes")


if __name__ == "__main__":
    main()
