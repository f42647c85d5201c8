"""What trained models are worth: accuracy, prediction sets, suspect labels, rows taken out."""
