"""The collective engine: synchronous methods on a torch process group, without a launcher of ours."""
