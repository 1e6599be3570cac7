"""What the micro-benchmarks ask, by name: apart from them, as making their PTX takes a while."""

QUESTIONS = {
    "launches": "What do a launch, the start of a CTA and the change from one CTA to the next on an SM take?",
    "resident_clusters": "How many clusters run at the same time, by size and by the CTAs that an SM has room for?",
    "barriers": "How many cycles does an arrival, a wait, a barrier or a message through one take?",
    "shared_memory": "How many cycles do the instructions of a write-out take, by warps that do the same?",
    "write_out": "How many cycles do the steps of a write-out take: groups of stores, fences, a jump, and a whole one?",
    "wgmma": "How many cycles does a wgmma m64nNk16 of bf16 take, alone and back to back?",
    "wgmma_issue": "How many cycles does the issue of some wgmma take, before and after the tensor cores have no room?",
    "tcgen05_mma": "How many cycles does a tcgen05.mma of bf16 take, alone and back to back, with its commit?",
    "tensor_memory": "How many cycles does a load from tensor memory take, by warps that do the same?",
    "launch_control": "How long does an answer of cluster launch control take, when every CTA asks at once?",
    "tma_loads": "How long does a TMA load take, how many bytes a cycle arrive, by box, loads in flight and place?",
    "tma_bursts": "How long do TMA loads take that are issued one after the other, from L2 on one SM?",
    "tma_stores": "How long does a TMA store take, and how many bytes a cycle leave, by box and stores in flight?",
    "tma_mixed": "How many bytes a cycle arrive and leave when SMs load and store, by how much they store to in all?",
    "tma_edges": "How long does a TMA load take that lies partly or wholly outside of its tensor?",
    "tma_rows": "How many bytes a cycle arrive when not every row of a tensor begins with a cache line?",
    "shared_loads": "How many bytes a cycle arrive when groups of SMs load the same at the same time, by their size?",
    "tma_stored_rows": "How many bytes a cycle leave when not every row of a tensor begins with a cache line?",
    "cta_starts": "How long after a CTA's first instruction may it load, and when is its first data there?",
}
