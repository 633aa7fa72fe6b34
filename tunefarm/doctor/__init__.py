"""``tunefarm doctor``: is this machine fit to tune and to measure, and what would make it so?"""
