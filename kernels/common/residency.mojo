"""How many SMs clusters can fill: a cluster lies within one graphics processing cluster (GPC), and not every GPC has a
multiple of its CTAs.
"""


def sms_filled(cluster_size: Int, blackwell: Bool) -> Int:
    """CTAs that run at the same time, one an SM, on the usual GPU: 132 SMs of an H200, where 66, 30, 15 and 7 clusters of
    2, 4, 8 and 16 CTAs were resident at once; 148 of a B200, how they are spread over GPCs is an estimate."""
    var gpcs = [20, 20, 18, 18, 18, 18, 18, 18] if blackwell else [18, 18, 18, 18, 18, 16, 16, 10]
    var clusters = 0
    for sms in gpcs:
        clusters += sms // cluster_size
    return clusters * cluster_size
