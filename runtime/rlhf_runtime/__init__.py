"""The detached runtime: a supervisor, a coordinator, makers and trainers as Ray actors."""
