"""The training of train_fit.py as a plain loop: the same steps, and weights equal to the last bit.

    python demos/mnist/train_loop.py

`fit` adds to it: a line of progress, the history, and what is asked for, such as checkpoints.
"""

import mnist
import models
import pytensor
from pytensor_ml.optim import adam, linear_onecycle_schedule

import synkhronos as synk
from synkhronos.extensions import Batches, make_train_function
from synkhronos.training import averages_of, ema, guarded

data = mnist.load()
net = models.build(models.CNN, data.train[0].shape[1], seed=0)
synk.fork()
rule = guarded(ema(adam(linear_onecycle_schedule(3e-3, 2400)), 0.99))
with pytensor.config.change_flags(floatX="float32"):  # in which pytensor-ml computes its rates
    train = make_train_function(net.loss, net.params, net.x, net.y, rule, updates=net.updates)
accuracy = synk.function([net.x, net.y], net.accuracy, givens=averages_of(train.state))
(x, y), validation, test = ([synk.data(array) for array in pair] for pair in data)
batches = Batches(len(x), 50)
for epoch in range(1, 16):
    total = 0.0
    for rows in batches:
        total += float(train(x, y, batch=rows)) * len(rows)
    right = accuracy(*validation)
    mnist.say(f"epoch {epoch}/15: loss {total / len(x):.6f}, validation {100 * right:.2f} %")
    if right >= 0.99:
        break
mnist.finish(accuracy(*test))
