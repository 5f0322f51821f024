import torch

import smidgen

x = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
batches = list(zip(x.split(50), (x[:, 0] * x[:, 1] > 0).long().split(50), strict=True))
model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))
model = smidgen.fit.finetune(model, batches[:8], validation=batches[8:10]).model
posterior = smidgen.bayesify(model, batches[:8], batches[8:10])
loaded = smidgen.load(smidgen.save(posterior, "posterior"), model=model)
one, two = (smidgen.predict(p, model, batches[10]).probs for p in (posterior, loaded))
assert torch.equal(one, two), "a loaded posterior predicts something else"
