"""A small training with PyTorch that prints every loss to the last bit: the same numbers in every undisturbed run.

    torch_training.py [STEPS [MEBIBYTES]]

It goes through what trainings go through: convolutions (cuDNN), matrix products in float32 and bfloat16 (cuBLAS and
cuBLASLt), attention, dropout with the device's random numbers, a fused optimiser, a captured graph that is replayed, and
pinned memory. MEBIBYTES of ballast stay as they are; their sum is printed at the end.
"""

import os
import sys

# Asked for by cuBLAS where equal results are wanted; read when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, LENGTH, BATCH = 256, 128, 64, 16


class Block(nn.Module):
    """Attention and two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.mix(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.second(x)))), 0.1, self.training)


class Model(nn.Module):
    """Letters, a convolution over them, blocks, letters."""

    def __init__(self):
        super().__init__()
        self.embed, self.conv = nn.Embedding(WORDS, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=2)
        self.blocks, self.head = nn.Sequential(*(Block() for _ in range(4))), nn.Linear(WIDTH, WORDS)

    def forward(self, letters):
        x = self.embed(letters)
        x = x + self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.head(self.blocks(x))


def texts(step):
    """Seeded letters that can be learned: each follows from the one before."""
    start = torch.randint(0, WORDS, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    return (start + 7 * torch.arange(LENGTH + 1)) % WORDS


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    mebibytes = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    ballast = torch.randint(-(2**62), 2**62, (mebibytes << 17,), device="cuda") if mebibytes else None
    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    # Captured once: a sum of all weights, which later replays must find where they are.
    watched = torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            watched.copy_(sum(p.detach().abs().sum() for p in model.parameters()))
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        watched.copy_(sum(p.detach().abs().sum() for p in model.parameters()))

    print("ready", flush=True)
    for step in range(steps):
        letters = texts(step).pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=step % 2 == 0):
            loss = F.cross_entropy(model(letters[:, :-1]).float().flatten(0, 1), letters[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        graph.replay()
        print(f"step {step} loss {loss.item().hex()} weights {watched.item().hex()}", flush=True)
    if ballast is not None:
        print(f"ballast {ballast.sum().item()}", flush=True)


if __name__ == "__main__":
    main()
