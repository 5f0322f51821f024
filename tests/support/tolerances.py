"""The only file with numeric tolerances; each is a policy, not a guess per test."""

# Algebra and autodiff in float64 against a dense oracle in float64.
EXACT = {"rtol": 1e-9, "atol": 1e-11}
# The same quantity through an iterative solver.
SOLVER = {"rtol": 1e-5, "atol": 1e-7}
# The same quantity from another library, in float64, summed in another order.
PEER = {"rtol": 1e-8, "atol": 1e-10}
# Activations rounded to 8 bits in every layer, against plain ones: of the largest number.
EIGHT_BITS = 0.02
# float32 factors and eigenvectors against float64.
SINGLE = {"rtol": 2e-4, "atol": 2e-6}
# Quadrature or a normal approximation of a sigmoid: how far the probit may be off.
PROBIT = {"rtol": 0.0, "atol": 0.02}
# Monte Carlo: standard errors that a fixed-seed estimate may be away.
Z = 4.0
# Peak memory of fit and predict at 10 percent, against a plain forward and backward pass.
PEAK_MEMORY_RATIO = 1.3
# Between grid points of the prior precision, four to a decade.
INTERPOLATED = {"rel": 1e-3}
# Peak memory that was planned, against what a process was seen to take.
PLANNED_PEAK = {"rel": 0.25}
# A ratio of Bessel functions from a table against numerical integration.
INTEGRATED = {"rtol": 1e-8, "atol": 0.0}
# The same in float32: a few roundings.
ROUNDED = {"rtol": 5e-7, "atol": 0.0}
# The prior's drift by a rational function, against the table.
DRIFT = {"rtol": 2e-3, "atol": 0.0}
# A chain of short steps against the law that ever shorter ones approach.
SHORT_STEP = {"rel": 0.02}
# The same where a step is as long as the law is wide.
COARSE = {"rel": 0.25}
# Training state and stored bytes of a sparse network at 5 to 10 percent, against dense VI.
STATE_RATIO = 0.15
# The first steps of a weight that has just come, in learning rates.
ADAM_STEP = 1.5
# Nats of the log evidence of a float32 model, at precisions from 1e-10: each direction without
# curvature adds the square of a rounding over the precision.
EVIDENCE = {"rel": 0.0, "abs": 1e-3}
# Probabilities of a model in 16 bits against the same model in more.
HALF = {"rtol": 0.0, "atol": 0.02}
