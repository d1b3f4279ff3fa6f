"""The tensors of a GGUF file under their Hugging Face names, as float32; see `tensor_files`."""

import math
import re
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from longmem_jax.errors import UsageError
from longmem_jax.hosts.gguf_attributes import FREQUENCIES, HEAD, TABLE, attributes_of
from longmem_jax.hosts.pieces import Pieces
from longmem_jax.untrusted import byte_ranges, gguf_file
from longmem_jax.untrusted.gguf_file import Tensor
from longmem_jax.untrusted.library import library_errors
from longmem_jax.untrusted.schema import shown

CHUNK = 1 << 20  # numbers that are made of blocks at a time
DTYPES = {'F32': np.float32, 'F16': np.float16, 'BF16': ml_dtypes.bfloat16}
_LLAMA = {
    'attn_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm',
    'attn_q': 'self_attn.q_proj', 'attn_k': 'self_attn.k_proj', 'attn_v': 'self_attn.v_proj',
    'attn_q_norm': 'self_attn.q_norm', 'attn_k_norm': 'self_attn.k_norm',
    'attn_output': 'self_attn.o_proj', 'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj',
    'ffn_down': 'mlp.down_proj',
}  # fmt: skip
_GPT2 = {
    'attn_norm': 'ln_1', 'ffn_norm': 'ln_2', 'attn_qkv': 'attn.c_attn', 'attn_output': 'attn.c_proj',
    'ffn_up': 'mlp.c_fc', 'ffn_down': 'mlp.c_proj',
}  # fmt: skip
_LLAMA_ENDS = {
    TABLE: 'model.embed_tokens.weight', 'output_norm.weight': 'model.norm.weight',
    HEAD: 'lm_head.weight',
}  # fmt: skip
_GPT2_ENDS = {
    TABLE: 'transformer.wte.weight', 'position_embd.weight': 'transformer.wpe.weight',
    'output_norm.weight': 'transformer.ln_f.weight', 'output_norm.bias': 'transformer.ln_f.bias',
    HEAD: 'lm_head.weight',
}  # fmt: skip


class GgufFile:
    """The tensors of a file.

    Attributes:
      folder: the file.
      attributes: those of a `config.json`.
      shapes: name to shape.
      dtypes: name to 'F32': that of the numbers, not of the file.
      bytes_read: bytes of tensors that were given so far.
      pieces: none; see `TensorFiles`.
      threads, at_once: as in `TensorFiles`.
    """

    threads = 2  # more are not faster: making numbers of blocks is small steps of Python
    at_once = 1 << 62  # a whole parameter: some of its columns take as long as all

    def __init__(self, path: Path):
        """Opens a file; raises `UsageError` if it is not whole, or no model of a known architecture."""
        header = gguf_file.read_header(path)
        self.folder, self.bytes_read = path, 0
        self._lock = threading.Lock()
        frequencies = header.tensors.get(FREQUENCIES)
        factors = None if frequencies is None else self._numbers(frequencies, FREQUENCIES, 0, 1)
        self.attributes = attributes_of(header, path, None if factors is None else factors[0])
        self._turned = self.attributes['model_type'] == 'gpt2'
        self.pieces: dict[str, Pieces] = {}
        self._tensors = {
            _their_name(name, self._turned): tensor
            for name, tensor in header.tensors.items()
            if name != FREQUENCIES
        }
        if len(self._tensors) < len(header.tensors) - (frequencies is not None):
            raise UsageError(f'{path}: has tensors under two names that mean the same.')
        self.dtypes = dict.fromkeys(self._tensors, 'F32')
        self.shapes = {
            name: tensor.shape[::-1] if self._is_turned(name) else tensor.shape
            for name, tensor in self._tensors.items()
        }
        blocks = {tensor.type for tensor in self._tensors.values()} - {*DTYPES}
        if blocks:
            _require_package(path, blocks)

    def _is_turned(self, name: str) -> bool:
        """GPT-2's linear maps are [in, out] in Hugging Face's files, and [out, in] in these."""
        return self._turned and re.search(r'\.(c_attn|c_proj|c_fc)\.weight$', name) is not None

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor; `index` has a slice of step 1 per axis."""
        tensor = self._tensors[name]
        turned = self._is_turned(name)
        part = (
            self._part(tensor, name, index[::-1]).T if turned else self._part(tensor, name, index)
        )
        with self._lock:
            self.bytes_read += part.nbytes
        return part

    def _part(self, tensor: Tensor, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part as the file has it, but with the rows of rotated heads in their order."""
        if len(tensor.shape) > 2:
            raise UsageError(f'{self.folder}: {shown(name)} has {len(tensor.shape)} axes.')
        if len(tensor.shape) == 1:
            values = self._numbers(tensor, name, 0, 1)[0]
            return self._halves(values, name, len(values))[index]
        start, stop, _ = index[0].indices(tensor.shape[0])
        width = self._width_of_head(name)
        first = start // width * width  # whole heads
        last = min(-(-stop // width) * width, tensor.shape[0])
        rows = self._halves(self._numbers(tensor, name, first, last), name, last - first)
        return rows[start - first : stop - first, index[1]]

    def _width_of_head(self, name: str) -> int:
        """Rows of a head where they are permuted; else 1."""
        permuted = self.attributes['model_type'] == 'llama' and re.search(
            r'\.self_attn\.[qk]_proj\.', name
        )
        return self.attributes['head_dim'] if permuted else 1

    def _halves(self, rows: np.ndarray, name: str, count: int) -> np.ndarray:
        """Pairs (2i, 2i + 1) that are rotated become pairs (i, i + width / 2)."""
        width = self._width_of_head(name)
        if width % 2 or count % width:
            return rows
        heads = rows.reshape(count // width, width // 2, 2, *rows.shape[1:])
        return heads.swapaxes(1, 2).reshape(rows.shape)

    def _numbers(self, tensor: Tensor, name: str, first: int, last: int) -> np.ndarray:
        """Rows of a tensor, float32 [last - first, length of a row]."""
        length = tensor.shape[-1]
        size = (tensor.end - tensor.start) * length // math.prod(tensor.shape)  # bytes of a row
        step = max(CHUNK // length, 1)
        made = np.empty((last - first, length), np.float32)
        where = str(self.folder)
        with byte_ranges.opened(self.folder, where) as file:
            for row in range(first, last, step):
                count = min(step, last - row)
                start = tensor.start + row * size
                content = byte_ranges.read(file, start, count * size, where, self._problem)
                part = np.frombuffer(content, np.uint8).reshape(count, size)
                made[row - first : row - first + count] = _of_blocks(part, tensor.type, name)
        return made

    def _problem(self, why: str) -> UsageError:
        return UsageError(f'{self.folder}: not a whole GGUF file ({why}). Fetch or make it again.')

    def whole(self, name: str) -> np.ndarray:
        """A whole tensor."""
        return self.read(name, (slice(None),) * len(self.shapes[name]))

    def num_bytes(self, names: Any) -> int:
        """Bytes of the tensors of these names, as numbers."""
        return sum(4 * math.prod(self.shapes[name]) for name in names)


def _their_name(name: str, gpt2: bool) -> str:
    """The Hugging Face name of a tensor; one that no model has stays as it is, and is refused later."""
    ends, parts, start = (
        (_GPT2_ENDS, _GPT2, 'transformer.h') if gpt2 else (_LLAMA_ENDS, _LLAMA, 'model.layers')
    )
    found = re.fullmatch(r'blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)', name)
    if found and found[2] in parts:
        return f'{start}.{found[1]}.{parts[found[2]]}.{found[3]}'
    return ends.get(name, name)


def _require_package(path: Path, blocks: set[str]) -> None:
    """Raises `UsageError` if the package that turns blocks into numbers is not there."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f'{path}: has numbers in blocks ({", ".join(sorted(blocks))}), which need the package gguf; '
            "pip install 'longmem_jax[gguf]'."
        ) from error


def _of_blocks(rows: np.ndarray, kind: str, name: str) -> np.ndarray:
    """Numbers of rows of bytes, uint8 [rows, bytes]: [rows, numbers]."""
    if kind in DTYPES:
        return rows.view(DTYPES[kind])
    import gguf

    with library_errors(f'{shown(name)}: {kind} cannot be read'), np.errstate(all='ignore'):
        return gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
