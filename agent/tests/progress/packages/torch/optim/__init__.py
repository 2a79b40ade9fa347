from torch.optim.optimizer import Optimizer as Optimizer
from torch.optim.sgd import SGD as SGD
