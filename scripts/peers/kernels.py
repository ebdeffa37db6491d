#!/usr/bin/env python3
"""Our kernels beside torch.compile, Liger and FlashInfer, in one process and by turns: time and error.

usage: kernels.py width NAME OUT                 1b 7b 70b, or tiny, which tries all of it on a CPU
       kernels.py model WHO PRECISION NAME OUT   a whole model: WHO is ours or torch, PRECISION bf16 or fp8, NAME 1b
                                                 (4 x 8192 tokens) or tiny
       kernels.py report OUT                     the tables of what is in the folder OUT, and OUT/shares.svg

scripts/peers/kernels.sh calls it. OUT/results.json gets what was measured. Ours is build/shared/peers.so.
"""
import contextlib
import ctypes
import gc
import json
import math
import pathlib
import re
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/shared/peers.so"
BLOCK_MS, ROUNDS = 50, 5  # of a rival at a time; the median of so many
EPS, THETA = 1e-5, 500000.0
REFERENCE_ROWS, HEAD_ROWS = 4096, 1024  # that are computed in fp64
# D F H KV d V B T
WIDTHS = {
    "1b": (2048, 8192, 32, 8, 64, 128256, 4, 4096),
    "7b": (4096, 14336, 32, 8, 128, 128256, 4, 4096),
    "70b": (8192, 28672, 64, 8, 128, 128256, 4, 4096),
    "tiny": (64, 96, 4, 2, 16, 150, 2, 64),
}
SIZES = "D", "F", "H", "KV", "d", "V", "B", "T"
OURS, TWIN, COMPILE, LIGER, FLASHINFER = "ours", "unfused", "torch.compile", "Liger", "FlashInfer"
RIVALS = TWIN, COMPILE, LIGER, FLASHINFER


def import_torch():
    """The report needs none."""
    global torch, F, torch_llama
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import torch
    except ModuleNotFoundError:
        sys.exit("it needs PyTorch: pip install torch, or name a Python that has it in PYTHON")
    import torch._functorch.config
    import torch_llama
    from torch.nn import functional as F
    torch._functorch.config.donated_buffer = False  # a backward alone runs several times


# ---- Our library

Pointer, Int = ctypes.c_void_p, ctypes.c_int64


class RowStat(ctypes.Structure):
    """kernels/operand.h"""
    _fields_ = [("data", Pointer), ("stride", Int), ("parts", ctypes.c_int32)]


class Head(ctypes.Structure):
    """scripts/peers/kernels.c"""
    _fields_ = [("M", Int), ("x", Pointer), ("W", Pointer), ("sumsq", RowStat), ("targets", Pointer),
                ("logits", Pointer), ("ux", Pointer), ("u", Pointer), ("s", RowStat), ("dW", Pointer),
                ("dx", Pointer)]


def library():
    lib = ctypes.CDLL(str(LIBRARY))
    for name in "open", "stream", "training_open", "training_backend":
        getattr(lib, f"ours_{name}").restype = Pointer
    lib.ours_most_parts.restype = Int
    lib.ours_folds_softmax.restype = ctypes.c_bool
    lib.ours_loss.restype = lib.ours_step.restype = ctypes.c_double
    lib.ours_description.restype = ctypes.c_char_p
    return lib


def argument(value):
    if isinstance(value, torch.Tensor):
        assert value.is_contiguous()
        return Pointer(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return Int(value)


class Ours:
    """A backend of ours, "fused", "unfused" or "cpu", for one layer of a width."""

    def __init__(self, lib, kind, w, theta=THETA):
        sizes, why = (Int * 9)(*(getattr(w, name) for name in SIZES), 1), ctypes.create_string_buffer(2048)
        self.lib, self.w = lib, w
        self.be = lib.ours_open(kind.encode(), sizes, ctypes.c_double(theta), ctypes.c_double(EPS), why)
        if not self.be:
            raise RuntimeError(why.value.decode())
        self.be = Pointer(self.be)
        stream = lib.ours_stream(self.be)
        self.stream = torch.cuda.ExternalStream(stream) if stream else None

    def close(self):
        self.lib.ours_close(self.be)

    def bind(self, name, *values):
        """A call with these arguments; it keeps their memory."""
        function, ready = getattr(self.lib, f"ours_{name}"), [self.be, *map(argument, values)]
        return lambda keep=values: function(*ready)

    def sums(self, backward=False):
        """Memory of a row statistic that an operation writes."""
        parts = self.lib.ours_most_parts(self.be, ctypes.c_bool(backward))
        return self.keep(torch.empty(parts, self.w.M, device=self.w.device))

    def keep(self, memory):
        """A row statistic of [parts, M] sums."""
        s = RowStat(memory.data_ptr(), memory.shape[1], memory.shape[0])
        s.memory = memory
        return s

    def squares(self, x):
        return self.keep(x.float().square().sum(-1, keepdim=True).T.contiguous())

    def unit_squares(self, rows):
        """Of rows whose r is 1: the operation computes no RMSNorm."""
        return self.keep(torch.full((1, rows), self.w.D * (1 - EPS), device=self.w.device))


# ---- Widths: sizes, random data, the order of rows in our weights

class Width:
    def __init__(self, name):
        for key, value in zip(SIZES, WIDTHS[name]):
            setattr(self, key, value)
        self.name, self.M, self.R, self.Hd = name, self.B * self.T, (self.H + 2 * self.KV) * self.d, self.H * self.d
        gpu = name != "tiny"
        self.device = torch.device("cuda" if gpu else "cpu")
        self.dtype = torch.bfloat16 if gpu else torch.float32
        self.random = torch.Generator(self.device).manual_seed(7)
        angle = torch_llama.rope_angles({"rope_theta": THETA}, self.d, self.T).to(self.device)
        self.cosine, self.sine = angle.cos()[None].to(self.dtype), angle.sin()[None].to(self.dtype)
        self.exact = angle.cos(), angle.sin()

    def normal(self, *shape, deviation=1.0):
        x = torch.empty(shape, device=self.device, dtype=self.dtype)
        return x.normal_(0, deviation, generator=self.random)

    def weight(self, outputs, inputs):
        return self.normal(outputs, inputs, deviation=inputs**-0.5)

    def norm_weight(self):
        return 1 + self.normal(self.D, deviation=0.1)

    def empty(self, *shape):
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def targets(self):
        return torch.randint(self.V, (self.M,), device=self.device, generator=self.random)

    def rope_order(self):
        """Rows of Hugging Face's qkv, as ours has them: pairs (j, j + d/2) of q and k become neighbours."""
        rows = torch.arange(self.R, device=self.device)
        turned = rows[:(self.H + self.KV) * self.d].view(-1, 2, self.d // 2).transpose(1, 2).reshape(-1)
        return torch.cat((turned, rows[len(turned):]))

    def pair_order(self):
        """Rows of [gate; up], as ours has them (model/tensors.def: GROUPED_PAIRS)."""
        inside = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7], device=self.device)
        feature = (torch.arange(0, self.F, 8, device=self.device)[:, None] + inside).reshape(-1)
        return torch.stack((feature, self.F + feature), 1).reshape(-1)


def reordered(ours, order):
    """Columns in Hugging Face's order."""
    natural = torch.empty_like(ours)
    natural[:, order] = ours
    return natural


class Rival:
    """run() launches; results(what run() returned) says what it computed, in Hugging Face's order."""

    def __init__(self, name, run=None, stream=None):
        self.name, self.run, self.stream = name, run, stream
        self.results, self.ms, self.failed = None, [], None


def compiled(w, function):
    return torch.compile(function, dynamic=False) if w.device.type == "cuda" else function


def doubles(*tensors):
    return [t.detach().double() for t in tensors]


def liger():
    import liger_kernel.ops
    import liger_kernel.transformers
    return liger_kernel


def flashinfer():
    import flashinfer
    return flashinfer


def gather(ours, mine, peers, results_of):
    """The rivals: ours and its unfused twin, of which mine gives the calls and the results; and peers, {name: its
    maker}, whose functions return what results_of names, or makes a dict of. One that is not installed, or breaks,
    says so."""
    convert = results_of if callable(results_of) else lambda results: dict(zip(results_of, results))
    rivals = [Rival(name) for name in (OURS, TWIN, *peers)]
    for rival in rivals:
        try:
            if rival.name in peers:
                rival.run, rival.results = peers[rival.name](), convert
            else:
                be = ours("fused" if rival.name == OURS else "unfused")
                calls, results = mine(be)
                rival.results = lambda _, results=results: results()
                rival.run, rival.stream = lambda calls=calls: [call() for call in calls], be.stream
        except ImportError as missing:
            rival.failed = f"not installed ({missing.name})"
        except (Exception, SystemExit) as error:  # theirs, of any kind
            rival.failed = short(error)
    return rivals


def short(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


# ---- The patterns. Each gives its rivals and its reference in fp64, a dict of results, perhaps of the first rows.

def norm_gemm(w, ours, backward):
    """x1 = x + a Wo^T, z = RMSNorm(x1) W^T; backward: all gradients. Our dz comes as its producer leaves it: times r,
    with its row sums. The norm weight's gradient is left to the update."""
    a, x, Wo, W, wn = w.normal(w.M, w.Hd), w.normal(w.M, w.D), w.weight(w.D, w.Hd), w.weight(w.R, w.D), w.norm_weight()
    dx1, dz = w.normal(w.M, w.D), w.normal(w.M, w.R)
    folded = (W * wn).contiguous()
    leaves = a, x, Wo, W, wn
    names = ("da", "dx", "dWo", "dW", "dwn") if backward else ("x1", "z")

    def plain(a, x, Wo, W, wn):
        x1 = x + F.linear(a, Wo)
        return x1, F.linear(F.rms_norm(x1, (w.D,), wn, EPS), W)

    def by_liger(a, x, Wo, W, wn):
        h, x1 = liger().ops.LigerFusedAddRMSNormFunction.apply(F.linear(a, Wo), x, wn, EPS, 0.0, "llama", False)
        return x1, F.linear(h, W)

    def theirs(function):
        if not backward:
            evaluate = torch.no_grad()(function)
            return lambda: evaluate(*leaves)
        inputs = [t.detach().requires_grad_() for t in leaves]
        outputs = []

        def run():
            if not outputs:
                outputs.extend(function(*inputs))
            return torch.autograd.grad(outputs, inputs, (dx1, dz), retain_graph=True)
        return run

    def mine(be):
        x1, z, sums = w.empty(w.M, w.D), w.empty(w.M, w.R), be.sums()
        calls = [be.bind("residual", w.Hd, a, Wo, x, be.squares(x), x1, sums), be.bind("qkv", x1, sums, folded, z)]
        if not backward:
            return calls, lambda: {"x1": x1, "z": z}
        run_on(be.stream, lambda: [call() for call in calls])
        r = torch.rsqrt(x1.float().square().mean(-1, keepdim=True) + EPS)
        dz_scaled = (r * dz.float()).to(w.dtype)
        s = be.keep((dz_scaled.float() * z.float()).sum(-1)[None].contiguous())
        da, dx, dWo, dW = w.empty(w.M, w.Hd), w.empty(w.M, w.D), w.empty(w.D, w.Hd), w.empty(w.R, w.D)
        back = [be.bind("wgrad", w.R, w.D, dz_scaled, x1, dW),
                be.bind("norm_dgrad", w.R, dz_scaled, folded, x1, sums, s, dx1, dx),
                be.bind("wgrad", w.D, w.Hd, dx, a, dWo), be.bind("out_dgrad", dx, Wo, da)]
        return back, lambda: {"da": da, "dx": dx, "dWo": dWo, "dW": dW.double() * wn.double(),
                              "dwn": (dW.double() * W.double()).sum(0)}

    peers = {COMPILE: lambda: theirs(compiled(w, plain)), LIGER: lambda: liger() and theirs(by_liger)}
    if not backward:
        @torch.no_grad()
        def by_flashinfer():
            h, x1 = F.linear(a, Wo), residual
            flashinfer().norm.fused_add_rmsnorm(h, x1, wn, EPS)  # in place: the residual grows by each call
            return x1, F.linear(h, W)
        residual = x.clone()
        peers[FLASHINFER] = lambda: flashinfer() and by_flashinfer

    def reference():
        inputs = [t.requires_grad_(backward) for t in doubles(*leaves)]
        outputs = plain(*inputs)
        return dict(zip(names, torch.autograd.grad(outputs, inputs, doubles(dx1, dz)) if backward else outputs))
    return gather(lambda kind: ours(kind, theta=0), mine, peers, names), reference


def swiglu(w, ours):
    """z = x W^T, y = silu(gate) up; both are stored, as training needs them."""
    x, W, order = w.normal(w.M, w.D), w.weight(2 * w.F, w.D), w.pair_order()
    paired = W[order].contiguous()

    def plain(x, W):
        z = F.linear(x, W)
        gate, up = z.chunk(2, -1)
        return z, F.silu(gate) * up

    @torch.no_grad()
    def by_liger():
        z = F.linear(x, W)
        return z, liger().ops.swiglu.LigerFusedGateUpSiLUMulFunction.apply(z)

    @torch.no_grad()
    def by_flashinfer():
        z = F.linear(x, W)
        return z, flashinfer().activation.silu_and_mul(z)

    def mine(be):
        z, y = w.empty(w.M, 2 * w.F), w.empty(w.M, w.F)
        return ([be.bind("gate_up", x, be.unit_squares(w.M), paired, z, y)],
                lambda: {"z": reordered(z[:REFERENCE_ROWS], order), "y": y})

    fast = torch.no_grad()(compiled(w, plain))
    peers = {COMPILE: lambda: lambda: fast(x, W), LIGER: lambda: liger() and by_liger,
             FLASHINFER: lambda: flashinfer() and by_flashinfer}
    return gather(ours, mine, peers, ("z", "y")), lambda: dict(zip("zy", plain(*doubles(x[:REFERENCE_ROWS], W))))


def swiglu_backward(w, ours):
    """dy = dx W, and from z the gradients of gate and up. Ours also writes the row sums for RMSNorm's backward."""
    dx, W, z, order = w.normal(w.M, w.D), w.weight(w.D, w.F), w.normal(w.M, 2 * w.F), w.pair_order()
    paired = z[:, order].contiguous()

    def plain(dx, W, z):
        dy = (dx @ W).to(torch.promote_types(dx.dtype, torch.float32))
        gate, up = z.to(dy.dtype).chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        return torch.cat((dy * up * sigmoid * (1 + gate * (1 - sigmoid)), dy * gate * sigmoid), -1).to(dx.dtype)

    @torch.no_grad()
    def by_liger():
        return (liger().ops.swiglu.swiglu_fused_gate_up_backward(z, dx @ W),)

    def mine(be):
        dz = w.empty(w.M, 2 * w.F)
        return ([be.bind("down_dgrad", dx, W, paired, dx, be.unit_squares(w.M), dz, be.sums(True))],
                lambda: {"dz": reordered(dz[:REFERENCE_ROWS], order)})

    fast, n = torch.no_grad()(compiled(w, plain)), REFERENCE_ROWS
    peers = {COMPILE: lambda: lambda: (fast(dx, W, z),), LIGER: lambda: liger() and by_liger}
    return gather(ours, mine, peers, ("dz",)), lambda: {"dz": plain(*doubles(dx[:n], W, z[:n]))}


def rope(w, ours):
    """q, k, v = x W^T, q and k rotated."""
    x, W, order = w.normal(w.M, w.D), w.weight(w.R, w.D), w.rope_order()
    paired, heads = W[order].contiguous(), (w.H, w.KV, w.KV)

    def packed(heads_of):
        return {"qkv": torch.cat([t.transpose(1, 2).flatten(2) for t in heads_of], -1).flatten(0, 1)}

    def plain(x, W, cosine, sine):
        q, k, v = F.linear(x, W).view(-1, w.T, sum(heads), w.d).transpose(1, 2).split(heads, 1)
        return *torch_llama.Plain.rotate(q, k, cosine, sine), v

    parts = W.split([n * w.d for n in heads])

    @torch.no_grad()
    def by_liger():
        q, k, v = (F.linear(x, part).view(w.B, w.T, -1, w.d).transpose(1, 2) for part in parts)
        return *liger().transformers.liger_rotary_pos_emb(q, k, w.cosine, w.sine), v

    def mine(be):
        qkv = w.empty(w.M, w.R)
        return [be.bind("qkv", x, be.unit_squares(w.M), paired, qkv)], lambda: {"qkv": reordered(qkv, order)}

    fast = torch.no_grad()(compiled(w, plain))
    peers = {COMPILE: lambda: lambda: fast(x, W, w.cosine, w.sine), LIGER: lambda: liger() and by_liger}
    return gather(ours, mine, peers, packed), lambda: packed(plain(*doubles(x, W), *w.exact))


def head(w, ours, backward):
    """The mean loss of x W^T, and dlogits; backward: of RMSNorm(x) W^T, and dx and dW. Our norm weight's gradient is
    left to the update."""
    x, W, targets, wn = w.normal(w.M, w.D), w.weight(w.V, w.D), w.targets(), w.norm_weight()
    names = ("loss", "dx", "dW") if backward else ("loss", "dlogits")

    def plain(x, W, wn):
        return F.cross_entropy(F.linear(F.rms_norm(x, (w.D,), wn, EPS), W).float(), targets)

    def of_logits(logits):
        return F.cross_entropy(logits.float(), targets)

    def theirs(loss_of, loss_of_logits):
        inputs = [t.detach().requires_grad_() for t in (x, W, wn)]

        def whole():
            loss = loss_of(*inputs)
            return loss.detach(), *torch.autograd.grad(loss, inputs)

        def logits_alone():
            with torch.no_grad():
                logits = F.linear(x, W)
            loss = loss_of_logits(logits.requires_grad_())
            return loss.detach(), *torch.autograd.grad(loss, logits)
        return whole if backward else logits_alone

    def by_liger():
        from liger_kernel.ops import LigerRMSNormFunction
        from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss
        fused, plain_loss = LigerFusedLinearCrossEntropyLoss(), LigerCrossEntropyLoss()
        return theirs(lambda x, W, wn: fused(W, LigerRMSNormFunction.apply(x, wn, EPS), targets),
                      lambda logits: plain_loss(logits, targets))

    def mine(be):
        stride = -(-w.V // 16) * 16  # elements from one row of logits to the next (kernels/spec.h: padded_vocab)
        ids, logits, dx = targets.to(torch.int32), w.empty(w.M, stride), w.empty(w.M, w.D)
        sumsq, folded = (be.squares(x), W * wn) if backward else (be.unit_squares(w.M), W)
        dW = w.empty(w.V, w.D) if backward else None
        s = be.keep(torch.empty(1, w.M, device=w.device))
        folds = be.lib.ours_folds_softmax(be.be)
        u, ux = (torch.empty(w.M, device=w.device), w.empty(w.M, w.D)) if folds else (None, None)
        memory = {"x": x, "W": folded, "targets": ids, "logits": logits, "ux": ux, "u": u, "dW": dW, "dx": dx}
        h = Head(w.M, sumsq=sumsq, s=s, **{name: t.data_ptr() for name, t in memory.items() if t is not None})
        h.memory = memory, sumsq, s
        calls = [be.bind("head_loss", h)] + [be.bind("head_backward", h)] * backward

        def results():
            if backward:
                found = {"dx": dx.clone(), "dW": dW[:HEAD_ROWS].double() * wn.double()}
            else:
                found = {"dlogits": logits[:HEAD_ROWS, :w.V].double()}
                if folds:
                    found["dlogits"] *= u[:HEAD_ROWS, None].double()
            synchronize()
            return {"loss": torch.tensor(be.bind("loss", h)()), **found}
        return calls, results

    peers = {COMPILE: lambda: theirs(compiled(w, plain), compiled(w, of_logits)), LIGER: by_liger}

    def reference():
        """In pieces of rows; of dlogits and dx the first, of dW the first rows."""
        W64, wn64, n = W.double(), wn.double(), HEAD_ROWS
        loss, first, dW = 0.0, None, 0.0
        for begin in range(0, w.M, n):
            piece, ids = x[begin:begin + n].double().requires_grad_(backward), targets[begin:begin + n]
            h = F.rms_norm(piece, (w.D,), wn64, EPS) if backward else piece
            with torch.no_grad():
                logits = h @ W64.T
                lse = torch.logsumexp(logits, -1)
                loss += (lse - logits.gather(1, ids[:, None])[:, 0]).sum()
                logits.sub_(lse[:, None]).exp_()
                logits[torch.arange(len(ids), device=w.device), ids] -= 1
                logits /= w.M
                dW = dW + logits[:, :n].T @ h
            if first is None:
                first = {"dx": torch.autograd.grad(h, piece, logits @ W64)[0]} if backward else {"dlogits": logits}
        return {"loss": loss / w.M, **first, **({"dW": dW} if backward else {})}
    return gather(ours, mine, peers, names), reference


def layer_calls(w, be, weights, x, dy, memory):
    """The operations of model/forward.c and model/backward.c, out and dx. Layers share their memory: one runs at a
    time."""
    def make(name, *shape):
        if name not in memory:
            memory[name] = w.empty(*shape)
        return memory[name]

    qkv_W, out_W, gate_up_W, down_W, norm1, norm2 = weights
    qkv_W, gate_up_W = (qkv_W * norm1)[w.rope_order()], (gate_up_W * norm2)[w.pair_order()]
    qkv, o, x1 = make("qkv", w.M, w.R), make("o", w.M, w.Hd), make("x1", w.M, w.D)
    z, y = make("z", w.M, 2 * w.F), make("y", w.M, w.F)
    lse = torch.empty(w.B, w.H, w.T, device=w.device)
    squares, x1_squares, next_squares = be.squares(x), be.sums(), be.sums()
    out, dx = make("out", w.M, w.D), make("dx", w.M, w.D)
    forward = [
        be.bind("qkv", x, squares, qkv_W, qkv),
        be.bind("attention", qkv, o, lse),
        be.bind("residual", w.Hd, o, out_W, x, squares, x1, x1_squares),
        be.bind("gate_up", x1, x1_squares, gate_up_W, z, y),
        be.bind("residual", w.F, y, down_W, x1, x1_squares, out, next_squares)]
    s, dz, dx1 = be.sums(True), make("dz", w.M, 2 * w.F), make("dx1", w.M, w.D)
    da, dqkv = make("da", w.M, w.Hd), make("dqkv", w.M, w.R)
    backward = [
        be.bind("wgrad", w.D, w.F, dy, y, make("d_down", w.D, w.F)),
        be.bind("down_dgrad", dy, down_W, z, x1, x1_squares, dz, s),
        be.bind("wgrad", 2 * w.F, w.D, dz, x1, make("d_gate_up", 2 * w.F, w.D)),
        be.bind("norm_dgrad", 2 * w.F, dz, gate_up_W, x1, x1_squares, s, dy, dx1),
        be.bind("wgrad", w.D, w.Hd, dx1, o, make("d_out", w.D, w.Hd)),
        be.bind("out_dgrad", dx1, out_W, da),
        be.bind("attention_backward", qkv, o, lse, da, dqkv),
        be.bind("rope_backward", dqkv, qkv, x, squares, s),
        be.bind("wgrad", w.R, w.D, dqkv, x, make("d_qkv", w.R, w.D)),
        be.bind("norm_dgrad", w.R, dqkv, qkv_W, x, squares, s, dx1, dx)]
    return forward, backward, out, dx


def layer(w, ours, backward):
    """A layer; backward: dx and all weights' gradients, too. The reference is the first sequence."""
    x, dy = w.normal(w.M, w.D), w.normal(w.M, w.D)
    weights = (w.weight(w.R, w.D), w.weight(w.D, w.Hd), w.weight(2 * w.F, w.D), w.weight(w.D, w.F), w.norm_weight(),
               w.norm_weight())
    names, memory = ("out", "dx") if backward else ("out",), {}
    section = {"hidden_size": w.D, "intermediate_size": w.F, "head_dim": w.d, "num_attention_heads": w.H,
               "num_key_value_heads": w.KV, "rms_norm_eps": EPS}

    def theirs(ops, compile_it=lambda block: block):
        with w.device:
            block = torch_llama.Block(section, ops, False).to(w.dtype)
        modules = block.qkv, block.out, block.gate_up, block.down, block.attention_norm, block.mlp_norm
        with torch.no_grad():
            for module, value in zip(modules, weights):
                module.weight.copy_(value)
        run_block = compile_it(block)
        batch, upstream = x.view(w.B, w.T, w.D), dy.view(w.B, w.T, w.D)

        @torch.no_grad()
        def forward():
            return (run_block(batch, w.cosine, w.sine),)

        def both():
            leaf = batch.detach().requires_grad_()
            out = run_block(leaf, w.cosine, w.sine)
            return out.detach(), *torch.autograd.grad(out, [leaf, *block.parameters()], upstream)
        return both if backward else forward

    def mine(be):
        there, back, *results = layer_calls(w, be, weights, x, dy, memory)
        return there + back * backward, lambda: dict(zip(names, results))

    peers = {COMPILE: lambda: theirs(torch_llama.Plain, lambda block: compiled(w, block)),
             LIGER: lambda: liger() and theirs(torch_llama.Liger())}

    def reference():
        from torch.utils.checkpoint import checkpoint
        qkv_W, out_W, gate_up_W, down_W, norm1, norm2 = doubles(*weights)
        rows = x[:w.T].double().requires_grad_(backward)
        hidden = torch.ones(w.T, w.T, dtype=torch.bool, device=w.device).triu(1)

        def attention(q, k, v):  # the query heads of a key head, [heads, T, d]
            scores = (q @ k.transpose(-1, -2)).mul(w.d**-0.5).masked_fill(hidden, -math.inf)
            return scores.softmax(-1) @ v

        with torch.set_grad_enabled(backward):
            packed = F.linear(F.rms_norm(rows, (w.D,), norm1, EPS), qkv_W).view(w.T, -1, w.d).transpose(0, 1)
            q, k, v = packed.split((w.H, w.KV, w.KV))
            q, k = torch_llama.Plain.rotate(q, k, *w.exact)
            groups = zip(q.split(w.H // w.KV), k.split(1), v.split(1))
            o = torch.cat([checkpoint(attention, *group, use_reentrant=False) for group in groups])
            x1 = rows + F.linear(o.transpose(0, 1).flatten(1), out_W)
            gate, up = F.linear(F.rms_norm(x1, (w.D,), norm2, EPS), gate_up_W).chunk(2, -1)
            out = x1 + F.linear(F.silu(gate) * up, down_W)
            if not backward:
                return {"out": out}
            return {"out": out.detach(), "dx": torch.autograd.grad(out, rows, dy[:w.T].double())[0]}
    return gather(ours, mine, peers, lambda results: {key: value.flatten(0, 1) for key, value in zip(names, results)}
                  ), reference


PATTERNS = {
    "GEMM, residual, RMSNorm, GEMM": lambda w, ours: norm_gemm(w, ours, False),
    "its backward": lambda w, ours: norm_gemm(w, ours, True),
    "GEMM, SwiGLU": swiglu,
    "GEMM, SwiGLU's backward": swiglu_backward,
    "GEMM, RoPE": rope,
    "GEMM, cross entropy, dlogits": lambda w, ours: head(w, ours, False),
    "RMSNorm, lm_head, loss; dx, dW": lambda w, ours: head(w, ours, True),
    "a layer, forward": lambda w, ours: layer(w, ours, False),
    "a layer, forward and backward": lambda w, ours: layer(w, ours, True),
}


# ---- Measuring

def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_on(stream, run):
    """Runs on that stream, after all other work, and waits."""
    synchronize()
    with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
        result = run()
    synchronize()
    return result


def block_ms(rival, calls, gpu):
    """ms a call, of calls back to back."""
    if not gpu:
        began = time.perf_counter()
        for _ in range(calls):
            rival.run()
        return 1e3 * (time.perf_counter() - began) / calls
    stream = rival.stream or torch.cuda.current_stream()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        for _ in range(calls):
            rival.run()
        stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / calls


def attempt(rival, action):
    if rival.failed:
        return None
    try:
        return action()
    except Exception as error:  # theirs, of any kind
        rival.failed = short(error)
        print(f"  {rival.name} failed: {rival.failed}", file=sys.stderr, flush=True)
        synchronize()
        return None


def errors_of(rival, reference):
    """Root of the mean square of the difference over that of the reference, of each result."""
    got = rival.results(run_on(rival.stream, rival.run))
    synchronize()
    errors = {}
    for name, exact in reference.items():
        one = got[name][:len(exact)] if exact.dim() else got[name]
        errors[name] = float((one.to(exact) - exact).norm() / exact.norm())
    return errors


def measure(rivals, reference, gpu):
    exact = reference()
    errors = {}
    for rival in rivals:
        errors[rival.name] = attempt(rival, lambda r=rival: errors_of(r, exact))
    del exact
    if gpu:
        torch.cuda.empty_cache()
    calls = {}
    for rival in rivals:
        attempt(rival, lambda r=rival: block_ms(r, 2, gpu))
        ms = attempt(rival, lambda r=rival: block_ms(r, 3, gpu))
        calls[rival.name] = max(1, math.ceil((BLOCK_MS if gpu else 1) / ms)) if ms else 1
    for number in range(ROUNDS + 1):  # the first warms up
        for rival in rivals[number % len(rivals):] + rivals[:number % len(rivals)]:
            ms = attempt(rival, lambda r=rival: block_ms(r, calls[r.name], gpu))
            if ms and number:
                rival.ms.append(ms)
    return {rival.name: {"ms": sorted(rival.ms), "error": errors[rival.name], "failed": rival.failed}
            for rival in rivals}


def card():
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"


def results_in(folder):
    path = folder / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(folder, run, record):
    results = {**results_in(folder), run: record}
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def width_command(name, folder):
    w, lib, opened = Width(name), library(), {}
    gpu = w.device.type == "cuda"

    def ours(kind, theta=THETA):
        kind = kind if gpu else "cpu"
        if (kind, theta) not in opened:
            opened[kind, theta] = Ours(lib, kind, w, theta)
        return opened[kind, theta]

    record = {"sizes": {key: getattr(w, key) for key in SIZES}, "torch": torch.__version__, "patterns": {},
              "card": card(), "ours": lib.ours_description(ours("fused").be).decode()}
    for title, make in PATTERNS.items():
        began = time.perf_counter()
        try:
            with torch_llama.best_attention():
                result = measure(*make(w, ours), gpu)
        except Exception as error:  # the other patterns are still measured
            result = {OURS: {"ms": [], "error": None, "failed": short(error)}}
        record["patterns"][title] = result
        save(folder, name, record)
        said = ", ".join(f"{key} {statistics.median(one['ms']):.3f}" if one["ms"] else f"{key} failed: {one['failed']}"
                         for key, one in result.items())
        print(f"{name}: {title}: {said} ms ({time.perf_counter() - began:.0f} s)", flush=True)
        for key in [key for key in opened if key[1] != THETA and "backward" in title]:
            opened.pop(key).close()
        gc.collect()
        if gpu:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    for be in opened.values():
        be.close()


# ---- The whole model

# Config, keys, sequences, their length, token ids
MODELS = {"1b": ("configs/llama-3.2-1b.json", ["train.loss_chunks=0", "backend.device=cuda"], 4, 8192, 128256),
          "tiny": ("configs/quickstart.json", ["backend.device=cpu"], 2, 64, 258)}
KINDS = "GEMMs", "attention", "the rest"


class OurTraining:
    def __init__(self, keys, tokens):
        self.lib, why = library(), ctypes.create_string_buffer(2048)
        config, *overrides = [key.encode() for key in keys]
        listed = (ctypes.c_char_p * len(overrides))(*overrides)
        self.run = self.lib.ours_training_open(config, len(overrides), listed, why)
        if not self.run:
            raise RuntimeError(why.value.decode())
        self.run, self.tokens = Pointer(self.run), argument(tokens)
        be = Pointer(self.lib.ours_training_backend(self.run))
        stream = self.lib.ours_stream(be)
        self.stream = torch.cuda.ExternalStream(stream) if stream else None
        self.what = self.lib.ours_description(be).decode()

    def warm_up(self):
        """The first steps calibrate FP8, and record."""
        for _ in range(4):
            self.step()
        self.finish()

    def passes(self):
        self.lib.ours_passes(self.run, self.tokens)

    def step(self):
        self.lib.ours_step(self.run, self.tokens)

    def finish(self):
        return self.lib.ours_step(self.run, None)


class TheirTraining:
    """scripts/torch_llama.py, compiled where there is a GPU."""

    def __init__(self, keys, tokens):
        config = torch_llama.resolve(keys)
        gpu = config["backend"]["device"] != "cpu"
        self.trainer = torch_llama.Trainer(["compile" if gpu else "eager"], config)
        self.rows_of = tokens.long().unbind()
        self.stream, self.number, self.started = None, 0, None
        self.what = f"torch {torch.__version__}"

    def rows(self, *_):
        return self.rows_of

    def warm_up(self):
        """Nothing: the passes are timed before the moments take memory."""

    def passes(self):
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.trainer.model(*map(self.trainer.send, self.rows_of)).backward()

    def step(self):
        before, self.started = self.started, self.trainer.step(self, self.number)
        self.number += 1
        if before:
            self.trainer.result(before)

    def finish(self):
        loss, self.started = self.trainer.result(self.started)[0], None
        return loss


def kind_of(kernel):
    if kernel.startswith("triton"):
        return "the rest"
    if re.search(r"sdpa|flash|fmha|attention|cudnn", kernel, re.I):
        return "attention"
    ours, theirs = r"fused_kernel|sync_kernel", r"gemm|nvjet|cutlass|xmma|splitk|cublas"
    return "GEMMs" if re.search(f"{ours}|{theirs}", kernel, re.I) else "the rest"


def shares_of(events):
    """What kinds of kernels take, and single kernels, of the time from the first event to the last. Events are (start,
    duration, name). A kernel that starts before another has ended waits for it, and does not count until then."""
    events = sorted(events)
    until, kernels = events[0][0], {}
    for start, duration, name in events:
        taken = start + duration - max(start, until)
        if taken > 0:
            kernels[name] = kernels.get(name, 0) + taken
            until = start + duration
    span = until - events[0][0]
    shares = dict.fromkeys(KINDS, 0.0)
    for name, taken in kernels.items():
        shares[kind_of(name)] += taken / span
    shares["the rest"] = 1 - shares["GEMMs"] - shares["attention"]
    most = sorted(kernels, key=kernels.get, reverse=True)[:30]
    return shares, {name[:160]: [kind_of(name), round(kernels[name] / span, 5)] for name in most}


def profiled(training, steps, folder):
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            training.step()
        training.finish()
        synchronize()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = [(float(e["ts"]), float(e["dur"]), e["name"]) for e in json.loads(path.read_text())["traceEvents"]
              if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    path.unlink()
    return shares_of(events)


def model_command(who, precision, name, folder):
    config, keys, batch, length, ids = MODELS[name]
    keys = [str(ROOT / config), *keys, f"train.batch_size={batch}", f"train.sequence_length={length}", "data.val=",
            "data.train=none", "data.tokenizer=bytes", "optimizer.warmup_steps=0", "model.tie_word_embeddings=false"]
    gpu = name != "tiny"
    if gpu:
        keys.append(f"backend.precision={precision}")
    key = f"{name} {who} {precision}"
    record = {"model": name, "who": who, "precision": precision, "batch": batch, "length": length, "failed": None,
              "card": card()}
    tokens = torch.randint(ids, (2, batch, length), dtype=torch.int32, generator=torch.Generator().manual_seed(7))
    try:
        with torch_llama.best_attention():
            training = (OurTraining if who == "ours" else TheirTraining)(keys, tokens)
            record["what"] = training.what
            training.warm_up()
            for what, run in ("passes", training.passes), ("step", training.step):
                one = Rival(who, run, training.stream)
                block_ms(one, 2, gpu)
                calls = max(1, math.ceil((20 * BLOCK_MS if gpu else 1) / block_ms(one, 1, gpu)))
                one.ms = [block_ms(one, calls, gpu) for _ in range(ROUNDS)]
                record[f"{what}_ms"] = sorted(one.ms)
                save(folder, key, record)
            record["loss"] = training.finish()
            if gpu:
                record["shares"], record["kernels"] = profiled(training, 3, folder)
    except (Exception, SystemExit) as error:  # theirs, of any kind
        record["failed"] = short(error)
        print(f"{who} {precision} failed: {record['failed']}", file=sys.stderr)
    save(folder, key, record)
    said = [f"{what} {statistics.median(record[f'{what}_ms']):.1f} ms" for what in ("passes", "step")
            if f"{what}_ms" in record]
    said += [f"{kind} {100 * share:.1f} %" for kind, share in record.get("shares", {}).items()]
    print(f"{name} {who} {precision}: {', '.join(said)}", flush=True)


# ---- The report

def value(result, rival):
    one = result.get(rival)
    return statistics.median(one["ms"]) if one and one["ms"] else None


def numbers(values, digits):
    """One for each width; a dash where there is none."""
    return ", ".join("-" if v is None else f"{v:.{digits}f}" for v in values)


def error_ratio(result):
    """The largest of ours over torch.compile's, of the results that are matrices."""
    mine, theirs = (result.get(name, {}).get("error") for name in (OURS, COMPILE))
    if not mine or not theirs:
        return None
    return max(mine[name] / theirs[name] for name in mine if name != "loss" and theirs[name] > 0)


def print_table(columns, rows):
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in (columns, *rows)]
    print("\n".join((lines[0], "|---" * len(columns) + "|", *lines[1:])))


def pattern_table(records):
    first = records[0]
    sizes = ", ".join(str(r["sizes"]["D"]) for r in records)
    tokens = first["sizes"]["B"] * first["sizes"]["T"]
    print(f"{first['card']}, torch {first['torch']}; {tokens} tokens; hidden sizes {sizes}: medians of {ROUNDS} blocks "
          f"of {BLOCK_MS} ms by turns\n")
    rivals = [name for name in RIVALS if any(value(one, name) for r in records for one in r["patterns"].values())]
    columns = ["", f"{OURS}, ms", *(f"{rival} / ours" for rival in rivals), f"error, ours / {COMPILE}'s"]
    rows, failures, spread = [], {}, 0
    for title in PATTERNS:
        results = [r["patterns"].get(title, {}) for r in records]
        mine = [value(result, OURS) for result in results]
        cells = [title, numbers(mine, 3)]
        for rival in rivals:
            theirs = [value(result, rival) for result in results]
            cells.append(numbers([b / a if a and b else None for a, b in zip(mine, theirs)], 3))
        cells.append(numbers([error_ratio(result) for result in results], 2))
        rows.append(cells)
        for record, result in zip(records, results):
            for rival, one in result.items():
                if one["failed"]:
                    failures.setdefault((rival, one["failed"]), []).append(f"{title} at {record['sizes']['D']}")
                elif one["ms"]:
                    spread = max(spread, one["ms"][-1] / one["ms"][0] - 1)
    print_table(columns, rows)
    print(f"\nSpread of the blocks of a rival: at most {100 * spread:.1f} %.")
    for (rival, why), where in failures.items():
        print(f"{rival}: {why}: {'; '.join(where) if len(where) < 4 else f'{len(where)} of the cells'}")


def model_table(models):
    print(f"\n{models[0]['card']}, {models[0]['model']}, {models[0]['batch']} x {models[0]['length']}\n")
    rows = []
    for m in models:
        cells = [precision_of(m), name_of(m)]
        for what in "passes_ms", "step_ms":
            cells.append("{1:.1f} ({0:.1f} to {2:.1f})".format(m[what][0], statistics.median(m[what]), m[what][-1])
                         if what in m else "-")
        cells += [f"{100 * m['shares'][kind]:.1f} %" if "shares" in m else "-" for kind in KINDS]
        rows.append(cells)
    print_table(["", "", "forward and backward, ms", "whole step, ms", *KINDS], rows)
    print(f"\n{COMPILE}'s weights and moments are bf16, ours fp32. In FP8 its output layer is bf16, ours FP8.")
    for m in models:
        if m["failed"]:
            print(f"{name_of(m)}, {precision_of(m)}: {m['failed']}")


def name_of(m):
    return OURS if m["who"] == "ours" else COMPILE


def precision_of(m):
    return m["precision"].replace("fp", "FP")


def draw(models, path):
    """A bar for each step, as long as its time, in three parts. Its ground is white on dark pages, too."""
    bars = [m for m in models if "shares" in m]
    if not bars:
        return
    colors, left, width, height, gap, top = (("#2f5d90", "#ffffff"), ("#9cc3e6", "#1f2328"),
                                             ("#f0a04b", "#1f2328")), 150, 520, 26, 12, 58
    longest = max(statistics.median(m["step_ms"]) for m in bars)
    total = top + len(bars) * (height + gap) + 8
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {total}" width="760" height="{total}" '
           'font-family="sans-serif" font-size="13">', f'<rect width="760" height="{total}" rx="8" fill="#ffffff"/>',
           '<g fill="#1f2328">',
           f'<text x="10" y="20" font-size="14">A training step of {bars[0]["model"].upper()}, {bars[0]["batch"]} x '
           f'{bars[0]["length"]} tokens, {bars[0]["card"]}: ms</text>']
    for number, kind in enumerate(KINDS):
        x = left + 130 * number
        svg.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colors[number][0]}"/>'
                   f'<text x="{x + 18}" y="43">{kind}</text>')
    for number, m in enumerate(bars):
        step, x, y = statistics.median(m["step_ms"]), float(left), top + number * (height + gap)
        svg.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{name_of(m)}, {precision_of(m)}</text>')
        for (color, ink), kind in zip(colors, KINDS):
            ms = m["shares"][kind] * step
            long = width * ms / longest
            svg.append(f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="{height}" fill="{color}"/>')
            if long > 18:
                at = x + long / 2
                svg.append(f'<text x="{at:.1f}" y="{y + 18}" text-anchor="middle" fill="{ink}">{ms:.0f}</text>')
            x += long
        svg.append(f'<text x="{x + 6:.1f}" y="{y + 18}">{step:.0f}</text>')
    path.write_text("\n".join(svg) + "\n</g>\n</svg>\n", encoding="utf-8")
    print(f"\n{path}")


def report_command(folder):
    results = results_in(folder)
    widths = [results[name] for name in WIDTHS if name in results]
    keys = [f"{name} {who} {precision}" for name in MODELS for precision in ("bf16", "fp8")
            for who in ("torch", "ours")]
    models = [results[key] for key in keys if key in results]
    if widths:
        pattern_table(widths)
    if models:
        model_table(models)
        draw(models, folder / "shares.svg")


COMMANDS = {"width": width_command, "model": model_command, "report": report_command}


def main():
    command, *arguments = sys.argv[1:] or ["--help"]
    if command not in COMMANDS:
        sys.exit(__doc__.strip())
    folder = pathlib.Path(arguments.pop())
    folder.mkdir(parents=True, exist_ok=True)
    if command != "report":
        import_torch()
    COMMANDS[command](*arguments, folder)


if __name__ == "__main__":
    main()
