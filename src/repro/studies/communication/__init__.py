"""Communication characteristics of GPT training: logged calls, volumes and costs."""
