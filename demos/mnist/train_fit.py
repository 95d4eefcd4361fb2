"""Train the convolutional network of cnn.py on MNIST with all members, to 99 % of held-out images.

    python demos/mnist/train_fit.py

The program has twelve lines. `train_loop.py` makes the same steps in a plain loop, without `fit`:
its weights are equal to the last bit.
"""

import mnist
import models
from pytensor_ml.optim import adam, linear_onecycle_schedule

import synkhronos as synk
from synkhronos.training import fit

data = mnist.load()
net = models.build(models.CNN, data.train[0].shape[1], seed=0)
synk.fork()
how = {"optimizer": adam(linear_onecycle_schedule(3e-3, 2400)), "ema": 0.99}
told = {"validation": data.validation, "target": "val_accuracy >= 0.99"}
trainer = fit(net, data.train, batch=50, epochs=15, **how, **told)
mnist.finish(trainer.evaluate(data.test)["accuracy"])
