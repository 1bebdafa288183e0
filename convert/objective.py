"""What both runtimes train alike: a bridge's loss is the sum over streams s = 1 … S of DECAY^(s-1) times the mean of
KL(model ‖ student) + CE(student, the model's likeliest token) over the scored positions from s on."""

STREAMS = 3  # draft steps unrolled, unless told
DECAY = 0.8  # weight of each stream beside the one before (EAGLE-3's)
TOP = 4  # the model's likeliest tokens at each position, scored in every pass that scores only some rows of the head
