"""Reinforcement learning: environments on the device, and agents whose trunk has a memory."""
