"""What part of the whole run is training steps, evaluation, checkpointing and so on."""
