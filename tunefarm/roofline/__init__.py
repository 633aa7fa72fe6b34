"""``tunefarm bench --roofline``: how near each node of a model is to what the machine can do.

Williams, Waterman and Patterson 2009, with a roof for each level of the caches (Ilic et al. 2014).
"""
