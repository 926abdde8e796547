"""The optimiser steps: objective, learner, strategy over ranks, the trainer around them."""
