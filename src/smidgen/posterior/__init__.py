"""What every fit returns: posteriors, their draws, output covariance, cost and store."""
