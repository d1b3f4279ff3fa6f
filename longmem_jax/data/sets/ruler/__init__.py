"""RULER (Hsieh et al., 2024): needles, chains of variables, counts and questions in long texts."""
