"""How the clusters of a launch get their tiles, and how many run at the same time."""

from .config import GemmConfig


__extension GemmConfig:
    def is_static(self) -> Bool:
        """Each cluster has a fixed list of tiles."""
        return self.scheduler == "static"

    def cancels_clusters(self) -> Bool:
        """A cluster requests each further tile from the hardware: cluster launch control (PTX ISA 9.7.13.17)."""
        return self.scheduler == "clc"

    def counts_tiles(self) -> Bool:
        """A cluster takes the number of each further tile from a counter in global memory."""
        return self.scheduler == "dynamic"

    def fetches_tiles(self) -> Bool:
        """One thread fetches the next tile and sends it to all roles of the cluster through a ring of responses."""
        return self.cancels_clusters() or self.counts_tiles()

    def fills_sms(self) -> Bool:
        """The launch has as many clusters as run at the same time, or one for each tile if there are fewer tiles."""
        return self.is_static() or self.counts_tiles()

    def overlaps_launches(self) -> Bool:
        """A launch may begin before the previous one has ended (programmatic dependent launch). Until then it only
        initialises barriers and does not access global memory. Kernels do this where it was measured to pay."""
        return (self.kernel.is_persistent and not self.has_tmem()) or self.kernel.reads_directly


def resident_ctas(cluster_size: Int, blackwell: Bool) -> Int:
    """Returns how many CTAs run at the same time, one on each SM. A cluster runs within one graphics processing cluster
    (GPC). An H200 has 132 SMs: 66, 30, 15 and 7 clusters of 2, 4, 8 and 16 CTAs were resident at once. A B200 has 148;
    their distribution over GPCs is an estimate."""
    var gpcs = [20, 20, 18, 18, 18, 18, 18, 18] if blackwell else [18, 18, 18, 18, 18, 16, 16, 10]
    var clusters = 0
    for sms in gpcs:
        clusters += sms // cluster_size
    return clusters * cluster_size
