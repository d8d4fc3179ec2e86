"""Model FLOPs utilisation by every published convention, and which of them a published
figure follows."""
