from torch.optim.optimizer import Optimizer


class SGD(Optimizer):
    def step(self, closure=None):
        return closure and closure()
