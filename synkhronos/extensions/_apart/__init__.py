"""Members that train apart: what they keep, how they meet, a room for each kind of rule."""
